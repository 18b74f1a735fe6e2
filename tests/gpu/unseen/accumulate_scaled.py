"""Pretrain a small GPT: micro-batches of four, eight of them a step, bf16 by autocast, gradients scaled."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
MAX_ITERS = int(os.environ.get("STEPS", 2 if TINY else 150))
BLOCK, LAYERS, HEADS, DIM, VOCAB = (16, 2, 2, 32, 128) if TINY else (512, 12, 12, 768, 50304)
MICRO_BATCH, ACCUMULATE = (2, 2) if TINY else (4, 8)
if "one-batch" in FIX:
    MICRO_BATCH, ACCUMULATE = MICRO_BATCH * ACCUMULATE, 1
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.wte.weight
        self.apply(lambda m: nn.init.normal_(m.weight, std=0.02) if isinstance(m, nn.Linear) else None)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


data = torch.randint(0, VOCAB, (1_000_000 if not TINY else 5000,))


def get_batch():
    ix = torch.randint(len(data) - BLOCK - 1, (MICRO_BATCH,))
    x = torch.stack([data[i : i + BLOCK] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in ix])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


def learning_rate(it, top=6e-4, warmup=20):
    return (
        top * (it + 1) / warmup
        if it < warmup
        else top * (0.1 + 0.45 * (1 + math.cos(math.pi * it / MAX_ITERS)))
    )


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), fused=True if "fused" in FIX else None)
scaler = torch.amp.GradScaler(device, enabled="no-scaler" not in FIX)
t0, durations = time.time(), []
for it in range(MAX_ITERS):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(it)
    total = 0.0
    for _ in range(ACCUMULATE):
        x, y = get_batch()
        with torch.autocast(device, torch.bfloat16):
            loss = model(x, y) / ACCUMULATE
        scaler.scale(loss).backward()
        total += loss.detach() if "item-rarely" in FIX else loss.item()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if it % 10 == 0 or it == MAX_ITERS - 1:
        total = float(total)
    t1 = time.time()
    durations.append(t1 - t0)
    t0 = t1
    if it % 10 == 0:
        rate = MICRO_BATCH * ACCUMULATE * BLOCK / durations[-1]
        print(f"iter {it}: loss {total:.4f}, time {durations[-1] * 1000:.2f}ms, {rate:.0f} tok/s")
kept = durations[MAX_ITERS // 4 :]
print(f"mean iter time {sum(kept) / len(kept) * 1000:.3f}ms")
