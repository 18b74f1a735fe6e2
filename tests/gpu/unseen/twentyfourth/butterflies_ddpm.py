"""Butterflies drawn from noise, step by step, and a film of how they come to be."""

import math
import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 9 if TINY else 400))  # of denoising
BATCH, SIZE, CHANNELS, MOMENTS, SHOWN = (3, 8, 8, 5, 1) if TINY else (256, 64, 64, 200, 7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True

betas = torch.linspace(1e-4, 0.02, MOMENTS)
alphas = 1 - betas
alphas_cumprod = torch.cumprod(alphas, 0)
sqrt_recip_alphas = alphas.rsqrt()
sqrt_one_minus_alphas_cumprod = (1 - alphas_cumprod).sqrt()
posterior_variance = betas * (1 - F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)) / (1 - alphas_cumprod)
if "tables-on-device" in FIX:
    betas, sqrt_recip_alphas = betas.to(device), sqrt_recip_alphas.to(device)
    sqrt_one_minus_alphas_cumprod = sqrt_one_minus_alphas_cumprod.to(device)
    posterior_variance = posterior_variance.to(device)


def extract(table, t, shape):
    """What a table has for the moment of each picture."""
    if "tables-on-device" in FIX:
        return table.gather(0, t).view(-1, *[1] * (len(shape) - 1))
    return table.gather(0, t.cpu()).view(-1, *[1] * (len(shape) - 1)).to(t.device)


class Block(nn.Module):
    def __init__(self, enter, leave, known):
        super().__init__()
        self.time = nn.Linear(known, leave)
        self.conv1, self.norm1 = nn.Conv2d(enter, leave, 3, padding=1), nn.GroupNorm(4, leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, padding=1), nn.GroupNorm(4, leave)

    def forward(self, x, known):
        x = F.silu(self.norm1(self.conv1(x)) + self.time(known)[:, :, None, None])
        return x + F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide, known = (CHANNELS, 2 * CHANNELS, 4 * CHANNELS), 4 * CHANNELS
        pairs = list(pairwise(wide))
        self.know = nn.Sequential(nn.Linear(CHANNELS, known), nn.GELU(), nn.Linear(known, known))
        self.enter, self.leave = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 3, 1)
        self.down = nn.ModuleList(Block(a, a, known) for a, _ in pairs)
        self.smaller = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in pairs)
        self.middle = Block(wide[-1], wide[-1], known)
        self.larger = nn.ModuleList(nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in pairs)
        self.up = nn.ModuleList(Block(2 * a, a, known) for a, _ in pairs)

    def forward(self, x, t):
        turns = torch.exp(torch.arange(CHANNELS // 2, device=x.device) * (-math.log(1e4) / (CHANNELS // 2)))
        turns = t[:, None] * turns
        known = self.know(torch.cat([turns.sin(), turns.cos()], 1))
        x, kept = self.enter(x), []
        for block, smaller in zip(self.down, self.smaller, strict=True):
            x = block(x, known)
            kept.append(x)
            x = smaller(x)
        x = self.middle(x, known)
        for block, larger in zip(reversed(self.up), reversed(self.larger), strict=True):
            x = block(torch.cat([larger(x), kept.pop()], 1), known)
        return self.leave(x)


@torch.no_grad()
def p_sample(model, x, t, moment):
    beta = extract(betas, t, x.shape)
    sqrt_one_minus = extract(sqrt_one_minus_alphas_cumprod, t, x.shape)
    sqrt_recip = extract(sqrt_recip_alphas, t, x.shape)
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        noise = model(x.contiguous(memory_format=torch.channels_last), t).float()
    mean = sqrt_recip * (x - beta * noise / sqrt_one_minus)
    if moment == 0:
        return mean
    return mean + extract(posterior_variance, t, x.shape).sqrt() * torch.randn_like(x)


def p_sample_loop(model, moments):
    """All pictures after each step."""
    x, images = torch.randn(BATCH, 3, SIZE, SIZE, device=device), []
    for moment in reversed(range(MOMENTS - moments, MOMENTS)):
        x = p_sample(model, x, torch.full((BATCH,), moment, device=device, dtype=torch.long), moment)
        images.append(x if "film-on-device" in FIX else x.cpu().numpy())
    if "film-on-device" in FIX:
        return [image.cpu().numpy() for image in (*[one[SHOWN] for one in images[:-1]], images[-1])]
    return [*[image[SHOWN] for image in images[:-1]], images[-1]]


def main():
    with device:
        model = UNet().eval().to(memory_format=torch.channels_last)
    lead, left, total, began = min(STEPS // 2, 16), STEPS, 0.0, 0.0
    p_sample_loop(model, lead)
    left -= lead
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    while left:
        moments = min(left, MOMENTS)
        *film, last = p_sample_loop(model, moments)
        moves = sum(np.abs(after - before).mean() for before, after in pairwise(film))
        total, left = total + np.abs(last).mean(), left - moments
        print(f"{len(last)} butterflies in {moments} steps, the film moves by {moves:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"sum {total:.5f}; {each:.3f} ms per step")


main()
