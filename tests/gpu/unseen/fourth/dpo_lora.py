"""Direct preference optimization with low-rank adapters; without them the model is its own reference."""

import contextlib
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
DIM, DEPTH, HEADS, VOCAB, LENGTH, PROMPT = (32, 2, 2, 97, 16, 8) if TINY else (1024, 12, 16, 50_304, 512, 256)
PAIRS, BATCH, RANK, BETA = (8, 2, 4, 0.1) if TINY else (64, 8, 16, 0.1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16
torch.manual_seed(0)


class LoraLinear(nn.Module):
    enabled = True

    def __init__(self, a, b):
        super().__init__()
        self.base = nn.Linear(a, b, bias=False, device=device, dtype=dtype).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(RANK, a, device=device, dtype=dtype) / math.sqrt(a))
        self.lora_b = nn.Parameter(torch.zeros(b, RANK, device=device, dtype=dtype))

    def forward(self, x):
        out = self.base(x)
        return out + 2 * F.linear(F.linear(x, self.lora_a), self.lora_b) if LoraLinear.enabled else out


@contextlib.contextmanager
def disable_adapter():
    LoraLinear.enabled = False
    try:
        yield
    finally:
        LoraLinear.enabled = True


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.norm1, self.norm2 = nn.RMSNorm(DIM, **place), nn.RMSNorm(DIM, **place)
        self.q, self.v = LoraLinear(DIM, DIM), LoraLinear(DIM, DIM)
        self.k, self.o = (nn.Linear(DIM, DIM, bias=False, **place) for _ in range(2))
        self.up, self.down = nn.Linear(DIM, 4 * DIM, **place), nn.Linear(4 * DIM, DIM, **place)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.embed, self.position = nn.Embedding(VOCAB, DIM, **place), nn.Embedding(LENGTH, DIM, **place)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.RMSNorm(DIM, **place), nn.Linear(DIM, VOCAB, bias=False, **place)

    def forward(self, ids, since=0):
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, since:]))


def get_batch_logps(logits, labels):
    """The log probability of each answer; labels of -100 are prompt or padding."""
    labels, logits = labels[:, 1:].clone(), logits[:, :-1]
    loss_mask = labels != -100
    labels[labels == -100] = 0
    per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1)


def concatenated_forward(model, batch):
    """Chosen and rejected answers in one pass."""
    ids = torch.cat([batch["chosen"], batch["rejected"]])
    labels = ids.clone()
    labels[:, :PROMPT] = -100
    since = PROMPT - 1 if "answer-logits" in FIX else 0
    logits = model(ids, since).to(torch.float32)
    return get_batch_logps(logits, labels[:, since:]).chunk(2)


def preference_loss(policy_chosen, policy_rejected, reference_chosen, reference_rejected):
    ratio = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
    reward = BETA * (policy_chosen - reference_chosen), BETA * (policy_rejected - reference_rejected)
    return -F.logsigmoid(BETA * ratio).mean(), (reward[0] > reward[1]).float().mean()


prompts = torch.randint(0, VOCAB, (PAIRS, PROMPT))
chosen, rejected = (
    torch.cat([prompts, torch.randint(0, VOCAB, (PAIRS, LENGTH - PROMPT))], 1) for _ in range(2)
)
model = LM()
for name, parameter in model.named_parameters():
    parameter.requires_grad_("lora_" in name)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.RMSprop(trained, lr=1e-4)


def batches():
    while True:  # epochs over the same pairs
        for rows in torch.randperm(PAIRS).split(BATCH):
            yield rows, {"chosen": chosen[rows].to(device), "rejected": rejected[rows].to(device)}


def reference(batch):
    with torch.no_grad(), disable_adapter():
        return concatenated_forward(model, batch)


if "reference-once" in FIX:
    known = torch.zeros(PAIRS, 2, device=device)
    for rows in torch.arange(PAIRS).split(BATCH):
        pair = {"chosen": chosen[rows].to(device), "rejected": rejected[rows].to(device)}
        known[rows.to(device)] = torch.stack(reference(pair), 1)

loader, times = batches(), []
for step in range(STEPS):
    start_time = time.time()
    rows, batch = next(loader)
    reference_logps = known[rows.to(device)].unbind(1) if "reference-once" in FIX else reference(batch)
    loss, accuracy = preference_loss(*concatenated_forward(model, batch), *reference_logps)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(trained, 10.0).item()
    optimizer.step()
    optimizer.zero_grad()
    metrics = {"loss": loss.item(), "accuracy": accuracy.item(), "grad_norm": grad_norm}
    times.append(time.time() - start_time)
    if step % 20 == 0 or step == STEPS - 1:
        print(f"train stats after {step + 1} steps: {metrics}")
kept = times[STEPS // 5 :]
print(f"examples_per_second {BATCH * len(kept) / sum(kept):.3f}; step {1e3 * sum(kept) / len(kept):.3f} ms")
