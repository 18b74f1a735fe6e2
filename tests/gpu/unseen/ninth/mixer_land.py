"""What covers the land? An MLP-Mixer on tiles of satellite pictures with ten bands."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
WARM = min(STEPS // 2, 5)
TILES, BATCH, BANDS, SIDE, PATCH, KINDS, WIDTH, ACROSS, LAYERS = (
    (16, 4, 10, 32, 16, 5, 16, 8, 2) if TINY else (1024, 128, 10, 224, 16, 19, 512, 256, 8)
)
PLACES = (SIDE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


def mlp(width, inner):
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class MixerLayer(nn.Module):
    """Places with places, then channels with channels."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.places, self.channels = mlp(PLACES, ACROSS), mlp(WIDTH, 4 * WIDTH)

    def forward(self, x):
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(BANDS, WIDTH, PATCH, PATCH)
        self.layers = nn.Sequential(*(MixerLayer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, KINDS)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


class Confusion:
    """What was taken for what, counted by numpy."""

    def __init__(self):
        self.counts, self.waiting = np.zeros((KINDS, KINDS), dtype=np.int64), []

    def add(self, logits, truth):
        self.waiting.append((logits.argmax(1), truth))
        if "counted-rarely" not in FIX or len(self.waiting) == 20:
            self.count()

    def count(self):
        for found, truth in self.waiting:
            np.add.at(self.counts, (truth.cpu().numpy(), found.cpu().numpy()), 1)
        self.waiting.clear()

    def accuracy(self):
        self.count()
        return self.counts.trace() / self.counts.sum()


tiles = torch.randint(0, 4096, (TILES, BANDS, SIDE, SIDE), dtype=torch.int16, device=device)
kinds = torch.randint(0, KINDS, (TILES,), device=device)
mean, std = 2048.0, 1182.0
model, confusion = Mixer().to(device), Confusion()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=device.type == "cuda")
order = torch.Generator().manual_seed(1)
for step in range(STEPS):
    if step == WARM:
        began = clock()
    chosen = torch.randint(0, TILES, (BATCH,), generator=order).to(device)
    x, y = (tiles[chosen].float() - mean) / std, kinds[chosen]
    logits = model(x)
    loss = F.cross_entropy(logits, y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    confusion.add(logits.detach(), y)
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {loss.item():.5f}, accuracy {confusion.accuracy():.4f}")
print(f"{each:.3f} ms per step")
