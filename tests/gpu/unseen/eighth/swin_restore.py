"""Clean noisy photographs with a window transformer (SwinIR), and say how near they come (PSNR)."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
PHOTOS, LARGE, SMALL, TRAINED, WINDOW, WIDTH, HEADS, GROUPS, DEPTH = (
    (4, 32, 16, 8, 4, 8, 2, 2, 2) if TINY else (20, 320, 240, 128, 8, 120, 6, 4, 6)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def partition(x):
    """Windows of a picture of tokens."""
    b, h, w, c = x.shape
    x = x.view(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, c)


def reverse(windows, h, w):
    x = windows.view(-1, h // WINDOW, w // WINDOW, WINDOW, WINDOW, windows.size(2))
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, windows.size(2))


class WindowAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(0.02 * torch.randn((2 * WINDOW - 1) ** 2, HEADS))
        axis = torch.arange(WINDOW)
        places = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + WINDOW - 1
        self.register_buffer("index", apart[:, :, 0] * (2 * WINDOW - 1) + apart[:, :, 1])

    def forward(self, x, mask):
        n, size, _ = x.shape
        q, k, v = self.qkv(x).view(n, size, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * q.size(3) ** -0.5) @ k.transpose(2, 3)
        scores = scores + self.table[self.index].permute(2, 0, 1)
        if mask is not None:
            scores = scores.view(-1, len(mask), HEADS, size, size) + mask[None, :, None]
            scores = scores.view(n, HEADS, size, size)
        return self.proj((scores.softmax(3) @ v).transpose(1, 2).reshape(n, size, WIDTH))


class Layer(nn.Module):
    """Attention within windows, shifted in every second layer."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), WindowAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.register_buffer("mask", self.calculate_mask((TRAINED, TRAINED)) if shift else None)
        self.kept = {}

    def calculate_mask(self, size):
        """What was apart before the shift does not look at each other."""
        regions, count = torch.zeros(1, *size, 1), 0
        parts = slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None)
        for rows in parts:
            for columns in parts:
                regions[:, rows, columns] = count
                count += 1
        windows = partition(regions).squeeze(2)
        apart = windows[:, None, :] - windows[:, :, None]
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def mask_for(self, x):
        size = tuple(x.shape[1:3])
        if not self.shift or size == (TRAINED, TRAINED):
            return self.mask
        if "masks-kept" in FIX:
            if size not in self.kept:
                self.kept[size] = self.calculate_mask(size).to(x.device)
            return self.kept[size]
        return self.calculate_mask(size).to(x.device)

    def forward(self, x):
        h, w = x.shape[1:3]
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = reverse(self.attention(partition(y), self.mask_for(x)), h, w)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Group(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Layer(WINDOW // 2 if i % 2 else 0) for i in range(DEPTH)))
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return x + self.conv(self.layers(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class SwinIR(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 3, 3, padding=1)
        self.groups, self.norm = nn.Sequential(*(Group() for _ in range(GROUPS))), nn.LayerNorm(WIDTH)
        nn.init.zeros_(self.last.weight)

    def forward(self, image):
        h, w = image.shape[2:]
        x = F.pad(image, (0, -w % WINDOW, 0, -h % WINDOW), "reflect")
        shallow = self.first(x)
        deep = self.norm(self.groups(shallow.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return (x + self.last(shallow + deep))[:, :, :h, :w]


def photographs():
    """Upright and wide ones, with noise."""
    rng, found = np.random.default_rng(0), []
    for i in range(PHOTOS):
        h, w = (LARGE, SMALL) if i % 2 else (SMALL, LARGE)
        coarse = torch.from_numpy(rng.random((1, 3, h // 8, w // 8), dtype=np.float32))
        clean = F.interpolate(coarse, size=(h, w), mode="bilinear")[0].permute(1, 2, 0).numpy()
        noise = rng.standard_normal(clean.shape, dtype=np.float32) * 25 / 255
        found.append(((clean * 255).round().astype(np.uint8), clean + noise))
    return found


def psnr(a, b):
    error = ((a.astype(np.float64) - b.astype(np.float64)) ** 2).mean()
    return 20 * np.log10(255 / np.sqrt(error))


@torch.no_grad()
def main():
    model, photos, found, times = SwinIR().to(device).eval(), photographs(), [], []
    for step in range(STEPS):
        clean, noisy = photos[step % PHOTOS]
        began = time.perf_counter()
        image = torch.from_numpy(noisy.transpose(2, 0, 1)).contiguous()[None]
        if "pinned" in FIX and device.type == "cuda":
            image = image.pin_memory()
        output = model(image.to(device, non_blocking=True))
        pixels = (output[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
        found.append(psnr(pixels, clean))
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"photograph {step}: {found[-1]:.2f} dB")
    kept = times[min(STEPS // 2, 4) :]
    print(f"PSNR {np.mean(found):.4f} dB; {1e3 * sum(kept) / len(kept):.3f} ms per photograph")


main()
