"""Embed the tiles of pathology slides with a vision transformer, and write them down: inference in bulk."""

import os
import queue
import tempfile
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))  # batches of tiles
TILE, PATCH, WIDTH, HEADS, LAYERS, BATCH, SLIDE = (
    (32, 16, 16, 2, 2, 4, 128) if TINY else (224, 16, 768, 12, 12, 192, 6272)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
cuda = device.type == "cuda"
torch.manual_seed(0)


def slide():
    """A scan: pink and purple, coarse spots, and white where there is no tissue."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(60, 220, (SLIDE // TILE, SLIDE // TILE, 3), dtype=np.uint8)
    scan = np.repeat(np.repeat(coarse, TILE, 0), TILE, 1)
    grain = rng.integers(0, 30, (TILE, TILE, 3), dtype=np.uint8)
    return scan + np.tile(grain, (SLIDE // TILE, SLIDE // TILE, 1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        count = (TILE // PATCH) ** 2
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.place = nn.Parameter(0.02 * torch.randn(1, count + 1, WIDTH))
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        self.register_buffer("mean", torch.tensor([0.707, 0.579, 0.704])[:, None, None])
        self.register_buffer("std", torch.tensor([0.212, 0.230, 0.178])[:, None, None])

    def forward(self, tiles):
        x = (tiles.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean) / self.std
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        x = self.norm(self.blocks(x))
        return torch.cat([x[:, 0], x[:, 1:].mean(1)], 1)


def cut(scan, places, full, empty):
    """A thread that cuts tiles into pinned buffers, which come back when they have been copied."""
    for rows in places:
        buffer = empty.get()
        tiles = buffer.numpy()
        for i, (row, column) in enumerate(rows):
            tiles[i] = scan[row : row + TILE, column : column + TILE]
        full.put(buffer)
    full.put(None)


scan = slide()
across = SLIDE // TILE
grid = [(TILE * (i // across), TILE * (i % across)) for i in range(across * across)]
places = [[grid[(step * BATCH + i) % len(grid)] for i in range(BATCH)] for step in range(STEPS)]
full, empty = queue.Queue(), queue.Queue()
for _ in range(4):
    buffer = torch.empty(BATCH, TILE, TILE, 3, dtype=torch.uint8)
    empty.put(buffer.pin_memory() if cuda else buffer)
model = Encoder().to(device).eval()
if cuda:
    model = model.to(torch.bfloat16)
mode = torch.inference_mode if "inference-mode" in FIX else torch.no_grad
times, kept, waiting = [], [], None
threading.Thread(target=cut, args=(scan, places, full, empty), daemon=True).start()
with tempfile.TemporaryDirectory() as folder, mode():
    shape = STEPS * BATCH, 2 * WIDTH
    written = np.memmap(os.path.join(folder, "features.npy"), np.float16, "w+", shape=shape)

    def finish(waiting):
        """Write down what an earlier batch has given."""
        step, features, ready, buffer = waiting
        if ready is not None:
            ready.synchronize()
        empty.put(buffer)
        if "features-kept" in FIX:
            kept.append((step, features.clone()))
        else:
            written[step * BATCH : (step + 1) * BATCH] = features.numpy()

    step, began = 0, time.perf_counter()
    while (buffer := full.get()) is not None:
        found = model(buffer.to(device, non_blocking=True)).half()
        if cuda:
            features = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            features.copy_(found, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        else:
            features, ready = found, None
        if waiting is not None:
            finish(waiting)
        waiting, step = (step, features, ready, buffer), step + 1
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    finish(waiting)
    for place, features in kept:
        written[place * BATCH : (place + 1) * BATCH] = features.numpy()
    written.flush()
    norm = float(np.abs(written.astype(np.float32)).mean())
timed = times[min(STEPS // 2, 5) :]
print(f"mean of features {norm:.5f}; {1e3 * sum(timed) / len(timed):.3f} ms per batch")
