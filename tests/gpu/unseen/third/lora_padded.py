"""Instruction tuning with LoRA: prompts and answers padded to the model's length, adapters on q and v."""

import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
MAX_STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
D, LAYERS, HEADS, FFN, VOCAB = (32, 2, 2, 64, 200) if TINY else (1024, 12, 16, 2816, 32_000)
CUTOFF_LEN, BATCH = (64, 2) if TINY else (1024, 8)
RANK, ALPHA, PAD = 8, 16, 0
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)
random.seed(11)


class LoraLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.lora_a = nn.Linear(inputs, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x)) * (ALPHA / RANK)


def rotary(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.q, self.v = LoraLinear(D, D), LoraLinear(D, D)
        self.k, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.gate, self.up = nn.Linear(D, FFN, bias=False), nn.Linear(D, FFN, bias=False)
        self.down = nn.Linear(FFN, D, bias=False)

    def forward(self, x, mask, cos, sin):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, D))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(D, eps=1e-6), nn.Linear(D, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, input_ids, attention_mask, labels):
        t = input_ids.shape[1]
        x = self.embed(input_ids)
        angles = torch.outer(
            torch.arange(t, device=x.device), 1e4 ** -torch.linspace(0, 1, D // HEADS // 2, device=x.device)
        )
        cos, sin = (f(torch.cat([angles, angles], -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        mask = causal[None, None] & attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask, cos, sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))


def instructions(count):
    """Draw tokenised examples; as in any such set, most are short and a few are long."""
    examples = []
    for _ in range(count):
        prompt = min(int(random.lognormvariate(4.2, 0.6)), CUTOFF_LEN // 2)
        answer = min(int(random.lognormvariate(4.4, 0.8)) + 2, CUTOFF_LEN - prompt)
        ids = random.choices(range(3, VOCAB), k=prompt + answer)
        examples.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return examples


def collate(examples):
    length = CUTOFF_LEN
    if "longest" in FIX:
        longest = max(len(one["input_ids"]) for one in examples)
        length = min(CUTOFF_LEN, 8 * math.ceil(longest / 8))

    def padded(name, value):
        return torch.tensor([one[name] + [value] * (length - len(one[name])) for one in examples])

    batch = {"input_ids": padded("input_ids", PAD), "labels": padded("labels", -100)}
    lengths = torch.tensor([len(one["input_ids"]) for one in examples])
    return batch | {"attention_mask": (torch.arange(length) < lengths[:, None]).long()}


model = CausalLM().to(device, torch.bfloat16)
for name, parameter in model.named_parameters():
    parameter.requires_grad = "lora_" in name
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
print(f"trainable params: {sum(p.numel() for p in trained):,}")
optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=True if "fused" in FIX else None)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, MAX_STEPS)
loader = DataLoader(
    instructions(MAX_STEPS * BATCH), BATCH, shuffle=True, collate_fn=collate, num_workers=0 if TINY else 2,
    pin_memory=device == "cuda",
)  # fmt: skip
warm, losses = MAX_STEPS // 5, []
for step, batch in enumerate(loader):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
    loss = model(**batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    if step % 10 == 9:
        print({"loss": round(loss.item(), 4), "learning_rate": scheduler.get_last_lr()[0], "step": step + 1})
train_loss = torch.stack(losses).mean().item()
runtime = time.perf_counter() - began
print({"train_loss": round(train_loss, 4), "train_steps_per_second": round((MAX_STEPS - warm) / runtime, 5)})
