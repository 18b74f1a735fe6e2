"""A codec of voices: transformers around eight books of codes, layers and books compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))
CLIPS, BATCH, PIECES, PIECE, WIDE, LAYERS, HEAD, BOOKS, CODES, NARROW = (
    (8, 2, 8, 16, 32, 1, 16, 2, 8, 8) if TINY else (256, 32, 200, 240, 512, 4, 64, 8, 1024, 64)
)
DECAY, DEAD = 0.99, 0.05
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Book(nn.Module):
    """Codes follow the mean of what chose them; those that are hardly chosen begin anew elsewhere."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", 0.1 * torch.randn(CODES, NARROW))
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", self.codes.clone())

    @torch.no_grad()
    def learn(self, flat, chosen):
        hot = F.one_hot(chosen, CODES).float()
        self.counts.lerp_(hot.sum(0), 1 - DECAY)
        self.sums.lerp_(hot.T @ flat, 1 - DECAY)
        self.codes.copy_(self.sums / self.counts.clamp(min=1e-5)[:, None])

    @torch.no_grad()
    def replace(self, flat):
        dead = self.counts < DEAD
        if "no-branches" not in FIX and not torch.any(dead):
            return
        others = flat[torch.arange(CODES, device=flat.device) * 7 % len(flat)]
        self.codes.copy_(torch.where(dead[:, None], others, self.codes))
        self.sums.copy_(torch.where(dead[:, None], others, self.sums))
        self.counts.copy_(torch.where(dead, 1.0, self.counts))

    def forward(self, x):
        flat = x.detach().flatten(0, 1)
        apart = self.codes.pow(2).sum(1) - 2 * flat @ self.codes.T
        chosen = apart.argmin(1)
        found = self.codes[chosen].view_as(x)
        self.learn(flat, chosen)
        self.replace(flat)
        return found, F.mse_loss(x, found)


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(PIECE, WIDE), nn.Linear(WIDE, PIECE)
        self.encoder, self.decoder = (nn.ModuleList(Layer() for _ in range(LAYERS)) for _ in range(2))
        self.narrow, self.widen = nn.Linear(WIDE, NARROW), nn.Linear(NARROW, WIDE)
        self.books = nn.ModuleList(Book() for _ in range(BOOKS))

    def forward(self, waves):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            x = self.enter(waves)
            for layer in self.encoder:
                x = layer(x)
            x = self.narrow(x)
        x = x.float()
        rest, whole, bound = x, torch.zeros_like(x), 0.0
        for book in self.books:
            found, loss = book(rest)
            rest, whole, bound = rest - found, whole + found, bound + loss
        x = x + (whole - x).detach()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            x = self.widen(x)
            for layer in self.decoder:
                x = layer(x)
            said = self.leave(x)
        return F.l1_loss(said.float(), waves) + 0.25 * bound / BOOKS


def voices():
    """Pieces of tones that rise and fall."""
    moments = torch.arange(PIECES * PIECE, device=device) / 24_000
    pitches = 80 + 300 * torch.rand(CLIPS, 1, device=device)
    waves = torch.sin(6.28 * pitches * moments) * (0.5 + 0.5 * torch.sin(20 * moments))
    waves = waves + 0.3 * torch.sin(12.56 * pitches * moments) + 0.02 * torch.randn_like(waves)
    return waves.view(CLIPS, PIECES, PIECE)


def main():
    waves = voices()
    with device:
        model = Codec().train()
    if low:
        for part in (*model.encoder, *model.decoder, *model.books):
            part.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = model(waves[torch.randint(CLIPS, (BATCH,), device=device)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
