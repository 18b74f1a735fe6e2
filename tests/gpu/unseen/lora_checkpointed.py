"""LoRA fine-tuning of a llama-like model (1.1 B, random weights) on instructions of 1024 tokens."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
DIM, LAYERS, HEADS, HIDDEN, VOCAB = (64, 2, 2, 128, 256) if TINY else (2048, 20, 16, 5632, 32_000)
BATCH, LENGTH, RANK, ALPHA = (1, 16, 4, 8) if TINY else (4, 1024, 16, 32)
STEPS = int(os.environ.get("STEPS", 3 if TINY else 160))
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class LoRALinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.lora_a = nn.Linear(inputs, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.dropout = nn.Dropout(0.0 if "no-dropout" in FIX else 0.05)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(self.dropout(x))) * (ALPHA / RANK)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.k, self.v, self.o = (LoRALinear(DIM, DIM) for _ in range(4))
        self.gate, self.up, self.down = (
            LoRALinear(DIM, HIDDEN),
            LoRALinear(DIM, HIDDEN),
            LoRALinear(HIDDEN, DIM),
        )

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        frequencies = 1 / 10_000 ** (torch.arange(0, DIM // HEADS, 2) / (DIM // HEADS))
        angles = torch.outer(torch.arange(LENGTH).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.embed(ids)
        x.requires_grad_(True)
        for layer in self.layers:
            if "no-checkpointing" in FIX:
                x = layer(x, self.cos, self.sin)
            else:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
        return self.head(self.norm(x))


with torch.device(device):
    model = Model()
for name, parameter in model.named_parameters():
    parameter.requires_grad_("lora" in name)
    if "bf16-base" in FIX and "lora" not in name:
        parameter.data = parameter.data.bfloat16()
trainable = [p for p in model.parameters() if p.requires_grad]
count, everything = (sum(p.numel() for p in some) for some in (trainable, model.parameters()))
print(f"trainable params: {count:,} of {everything:,}")
optimizer = torch.optim.AdamW(trainable, 2e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

data = torch.randint(0, VOCAB, (64, LENGTH + 1))
took = []
for step in range(STEPS):
    if device == "cuda":
        torch.cuda.synchronize()
    t0 = time.perf_counter()
    batch = data[torch.randint(0, len(data), (BATCH,))].to(device)
    with torch.autocast(device, torch.bfloat16):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().view(-1, VOCAB), batch[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    took.append(time.perf_counter() - t0)
    if step % 10 == 0:
        print({"loss": round(loss.item(), 4), "lr": scheduler.get_last_lr()[0], "step": step})
took = took[STEPS // 4 :]
print(f"{sum(took) / len(took):.4f} s/step, {BATCH * LENGTH * len(took) / sum(took):.0f} tokens/s")
