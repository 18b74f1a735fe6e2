"""Pretrain a protein language model: masked residues, packed chains, bfloat16, compiled blocks."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))
BATCH, LENGTH, WIDTH, HEADS, LAYERS = (2, 16, 16, 2, 2) if TINY else (48, 512, 640, 10, 16)
VOCAB, CLS, EOS, MASK = 33, 0, 2, 32
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Chains(Dataset):
    """Proteins, end to end, cut into pieces of one length: no padding."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        frequent = torch.linspace(2, 0.3, 20)
        residues = torch.multinomial(frequent, count * LENGTH, True, generator=generator) + 4
        ends = torch.rand(count * LENGTH, generator=generator) < 1 / 300
        residues[ends] = EOS
        residues[1:][ends[:-1]] = CLS
        self.pieces = residues.view(count, LENGTH).to(torch.uint8)

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, idx):
        return self.pieces[idx]


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cos, sin):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ProteinLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.dense = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head_norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(LENGTH), 10_000 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.head_norm(F.gelu(self.dense(self.norm(x)))))


def corrupt(ids):
    """Fifteen of a hundred residues are asked for; most of these are masked, some are others or stay."""
    chosen = (torch.rand(ids.shape, device=ids.device) < 0.15) & (ids > 3)
    kind = torch.rand(ids.shape, device=ids.device)
    others = torch.randint_like(ids, 4, 24)
    seen = torch.where(chosen & (kind < 0.8), MASK, torch.where(chosen & (kind > 0.9), others, ids))
    return seen, torch.where(chosen, ids, -100)


def batches(loader):
    while True:
        for pieces in loader:
            yield pieces.to(device, non_blocking=True).long()


cuda = device.type == "cuda"
loader = DataLoader(
    Chains(32 * BATCH), BATCH, shuffle=True, drop_last=True, pin_memory=cuda,
    num_workers=0 if TINY else 2, persistent_workers=not TINY, prefetch_factor=None if TINY else 8,
)  # fmt: skip
model = ProteinLM().to(device)
for block in model.blocks:
    block.compile(backend="inductor" if cuda else "aot_eager")
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
    lr=4e-4, betas=(0.9, 0.98), fused=cuda,
)  # fmt: skip
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 2000))
times, shown, source = [], 0.0, batches(loader)
for step in range(STEPS):
    began = time.perf_counter()
    seen, asked = corrupt(next(source))
    with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
        loss = F.cross_entropy(model(seen).flatten(0, 1), asked.flatten())
    loss.backward()
    if "no-clipping" not in FIX:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
        shown = loss.item()
    times.append(time.perf_counter() - began)
    if step % 10 == 0:
        print(f"step {step}: loss {shown:.4f}, perplexity {math.exp(shown):.2f}")
kept = times[min(STEPS // 2, 8) :]
print(f"loss {shown:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
