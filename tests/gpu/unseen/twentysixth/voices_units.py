"""A language model of speech without text: it learns which unit of sound comes next in long recordings."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
UNITS, SPOKEN, BATCH, LONG, WIDE, LAYERS, HEAD = (
    (32, 2000, 2, 16, 32, 2, 8) if TINY else (2000, 1 << 23, 16, 2048, 3072, 4, 128)
)
WARM = 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.grow, self.shrink = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x):
        batch, long, _ = x.shape
        qkv = self.qkv(self.before(x)).view(batch, long, 3, WIDE // HEAD, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, long, WIDE))
        return x + self.shrink(F.gelu(self.grow(self.between(x))))


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.units, self.places = nn.Embedding(UNITS, WIDE), nn.Embedding(LONG, WIDE)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, UNITS, bias=False)
        for one in self.parameters():
            if one.dim() > 1:
                nn.init.normal_(one, std=0.02)

    def forward(self, units):
        x = self.units(units) + self.places.weight[: units.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def spoken():
    """Units of sound of a very long recording, in which near ones follow each other."""
    steps = torch.randint(-3, 4, (SPOKEN,), device=device) * (torch.rand(SPOKEN, device=device) < 0.7)
    return (steps.cumsum(0) % UNITS).to(torch.int16)


def main():
    units = spoken()
    with device:
        model = Speaker()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4, (0.9, 0.95), weight_decay=0.1, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM))
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    ahead = torch.arange(LONG + 1, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        starts = torch.randint(SPOKEN - LONG, (BATCH, 1), device=device)
        part = units[starts + ahead].long()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
