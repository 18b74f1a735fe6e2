"""Organs in scans: a 3-D U-Net slides over each volume, and Dice tells how well it did."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 24))  # volumes
SCANS, SIDE, WINDOW, ORGANS, WIDTHS = (2, 24, 16, 4, (4, 8)) if TINY else (3, 144, 96, 14, (16, 32, 64, 128))
OVERLAP = 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def double(inner, outer):
    return nn.Sequential(
        nn.Conv3d(inner, outer, 3, 1, 1),
        nn.InstanceNorm3d(outer),
        nn.LeakyReLU(inplace=True),
        nn.Conv3d(outer, outer, 3, 1, 1),
        nn.InstanceNorm3d(outer),
        nn.LeakyReLU(inplace=True),
    )


class UNet3d(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(
            double(inner, outer) for inner, outer in zip((1, *WIDTHS[:-1]), WIDTHS, strict=True)
        )
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(inner, outer, 2, 2) for inner, outer in pairs)
        self.up = nn.ModuleList(double(2 * outer, outer) for _, outer in pairs)
        self.out = nn.Conv3d(WIDTHS[0], ORGANS, 1)

    def forward(self, x):
        kept = []
        for i, layer in enumerate(self.down):
            x = layer(F.max_pool3d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), kept.pop()], 1))
        return self.out(x)


def importance():
    """The middle of a window counts more than its edges."""
    line = np.exp(-0.5 * ((np.arange(WINDOW) - (WINDOW - 1) / 2) / (0.125 * WINDOW)) ** 2)
    cube = line[:, None, None] * line[None, :, None] * line[None, None, :]
    return torch.from_numpy(np.maximum(cube, 1e-3).astype(np.float32))


def places():
    step = int(WINDOW * (1 - OVERLAP))
    along = sorted({min(begin, SIDE - WINDOW) for begin in range(0, SIDE - WINDOW + step, step)})
    return [
        tuple(slice(begin, begin + WINDOW) for begin in (z, y, x))
        for z in along
        for y in along
        for x in along
    ]


@torch.inference_mode()
def sliding_window(model, volume, stitched_on):
    """Logits of a volume from those of its windows, which overlap."""
    weight = (kept_importance if "importance-once" in FIX else importance()).to(stitched_on)
    output = torch.zeros(1, ORGANS, *volume.shape[2:], device=stitched_on)
    count = torch.zeros(1, 1, *volume.shape[2:], device=stitched_on)
    for z, y, x in places():
        logits = model(volume[:, :, z, y, x]).to(stitched_on)
        output[:, :, z, y, x] += logits * weight
        count[:, :, z, y, x] += weight
    return output / count


@torch.inference_mode()
def dice(found, truth):
    """Of each organ."""
    scores = []
    for organ in range(1, ORGANS):
        one, other = found == organ, truth == organ
        scores.append(2 * (one & other).sum() / (one.sum() + other.sum()).clamp(min=1))
    return torch.stack(scores)


kept_importance = importance()
model = UNet3d().to(device).eval()
stitched_on = device if "stitched-on-device" in FIX else torch.device("cpu")
scans = torch.randn(SCANS, 1, 1, SIDE, SIDE, SIDE)
truths = F.interpolate(scans[:, 0, :, ::8, ::8, ::8], size=(SIDE,) * 3, mode="trilinear")
truths = ((truths[:, 0] * 2 + ORGANS / 2).long() % ORGANS).to(torch.uint8)
times, scores, windows = [], [], len(places())
for step in range(STEPS):
    began = time.perf_counter()
    volume, truth = scans[step % SCANS].to(device), truths[step % SCANS]
    logits = sliding_window(model, volume, stitched_on)
    found = logits.argmax(1)[0].to(torch.uint8)
    scores.append(dice(found, truth.to(stitched_on)).cpu())
    times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 2) :]
mean = torch.stack(scores).mean().item()
print(f"Dice {mean:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per volume of {windows} windows")
