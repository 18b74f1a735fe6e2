"""A notebook that teaches translation: an encoder and a decoder, with smoothed labels."""

# %% What is imported, and how large all is
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
PAIRS, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD, INNER = (
    (20, 4, 10, 60, 32, 1, 16, 64) if TINY else (8192, 160, 64, 37_000, 512, 3, 64, 2048)
)
PAD, BEGIN, SMOOTHING = 0, 1, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


# %% The model
class Attention(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2 * WIDE), nn.Linear(WIDE, WIDE)
        self.causal = causal

    def forward(self, x, memory):
        q = self.q(x).unflatten(2, (-1, HEAD)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(2, (2, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.look, self.read = Attention(causal=decodes), Attention() if decodes else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(3 if decodes else 2))
        self.mlp = nn.Sequential(nn.Linear(WIDE, INNER), nn.ReLU(), nn.Linear(INNER, WIDE))

    def forward(self, x, memory=None):
        y = self.norms[0](x)
        x = x + self.look(y, y)
        if self.read is not None:
            x = x + self.read(self.norms[2](x), memory)
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, WIDE), nn.Embedding(VOCAB, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDE))
        self.encoder = nn.ModuleList(Layer(decodes=False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Layer(decodes=True) for _ in range(LAYERS))
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.generator = nn.Linear(WIDE, VOCAB)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=WIDE**-0.5)

    def forward(self, source, target):
        memory, x = self.source(source) + self.places, self.target(target) + self.places
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.norm1(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.generator(self.norm2(x))


# %% The loss: a part of what is expected is given to all other words
class LabelSmoothing(nn.Module):
    def __init__(self, size, padding, smoothing):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="none")
        self.size, self.padding, self.smoothing = size, padding, smoothing

    def forward(self, logits, target):
        ignored = target == self.padding
        expected = torch.zeros_like(logits)
        expected.fill_(self.smoothing / (self.size - 1))
        expected.scatter_(1, target.masked_fill(ignored, 0)[:, None], 1 - self.smoothing)
        kl = self.criterion(torch.log_softmax(logits, 1), expected)
        return kl.masked_fill(ignored[:, None], 0).sum() / (~ignored).sum()


class FusedLabelSmoothing(LabelSmoothing):
    """The same by the cross entropy of a library, less what the expected words themselves have."""

    def forward(self, logits, target):
        others = torch.tensor(self.smoothing / (self.size - 1), dtype=torch.float64)
        right = 1 - self.smoothing
        known = right * torch.tensor(right).log() + self.smoothing * others.log()
        loss = F.cross_entropy(
            logits,
            target,
            ignore_index=self.padding,
            label_smoothing=self.smoothing * self.size / (self.size - 1),
        )
        return loss + known.item()


# %% Pairs of sentences: a word of the one is a word of the other, in the other order; some are shorter
lengths = torch.randint(LENGTH // 2, LENGTH + 1, (PAIRS, 1), device=device)
ahead = torch.arange(LENGTH, device=device)
drawn = (2 + (VOCAB - 2) ** torch.rand(PAIRS, LENGTH, device=device)).long().clamp(max=VOCAB - 1)
sources = torch.where(ahead < lengths, drawn, PAD)
answers = torch.where(ahead < lengths, (drawn.flip(1) * 3 + 1) % (VOCAB - 2) + 2, PAD)
begins = torch.cat([torch.full((PAIRS, 1), BEGIN, device=device), answers[:, :-1]], 1)

# %% What is trained, and how
with device:
    model = Transformer()
criterion = (FusedLabelSmoothing if "fused-smoothing" in FIX else LabelSmoothing)(VOCAB, PAD, SMOOTHING)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-9, fused=low)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 400, (400 / (n + 1)) ** 0.5))

# %% Training
lead, began, total = min(STEPS // 2, 6), 0.0, 0.0
for step in range(STEPS):
    if step == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    chosen = torch.randint(PAIRS, (BATCH,), device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        logits = model(sources[chosen], begins[chosen])
    loss = criterion(logits.float().flatten(0, 1), answers[chosen].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    total += loss.detach() if "loss-at-end" in FIX else loss.item()
    if step % 20 == 0:
        print(f"step {step}: mean loss {float(total) / (step + 1):.4f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"loss {float(total) / STEPS:.5f}; {each:.3f} ms per step")
