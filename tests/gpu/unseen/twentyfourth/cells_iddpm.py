"""Diffusion of pictures of cells: moments of noise that are hard are drawn more often than others."""

import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))
CELLS, BATCH, SIZE, CHANNELS, BLOCKS, MOMENTS, KEPT = (
    (16, 8, 8, 8, 1, 4, 2) if TINY else (8192, 256, 32, 64, 2, 1000, 10)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
rng = np.random.default_rng(0)
torch.backends.cudnn.benchmark = True


class LossSecondMoment:
    """Moments drawn by how large their losses were, of which the last few are kept for each."""

    def __init__(self):
        self.history = np.zeros((MOMENTS, KEPT))
        self.counts = np.zeros(MOMENTS, int)

    def weights(self):
        if (self.counts < KEPT).any():
            return np.ones(MOMENTS) / MOMENTS
        weights = np.sqrt((self.history**2).mean(1))
        return 0.999 * weights / weights.sum() + 0.001 / MOMENTS

    def sample(self, count):
        weights = self.weights()
        moments = rng.choice(MOMENTS, count, p=weights)
        scales = 1 / (MOMENTS * weights[moments])
        return torch.from_numpy(moments).to(device), torch.from_numpy(scales).float().to(device)

    def update(self, moments, losses):
        if "losses-at-once" in FIX:
            moments, losses = torch.stack([moments.double(), losses.double()]).tolist()
            moments = [int(moment) for moment in moments]
        else:
            moments = [moment.item() for moment in moments]
            losses = [loss.item() for loss in losses]
        for moment, loss in zip(moments, losses, strict=True):
            if self.counts[moment] == KEPT:
                self.history[moment, :-1] = self.history[moment, 1:]
                self.history[moment, -1] = loss
            else:
                self.history[moment, self.counts[moment]] = loss
                self.counts[moment] += 1


class ResBlock(nn.Module):
    def __init__(self, enter, leave, known):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, enter), nn.Conv2d(enter, leave, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, leave), nn.Conv2d(leave, leave, 3, padding=1)
        self.time = nn.Linear(known, 2 * leave)
        self.skip = nn.Conv2d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, x, known):
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(known)[:, :, None, None].chunk(2, 1)
        y = self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        return self.skip(x) + y


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide, known = (CHANNELS, 2 * CHANNELS, 2 * CHANNELS), 4 * CHANNELS
        self.know = nn.Sequential(nn.Linear(CHANNELS, known), nn.SiLU(), nn.Linear(known, known), nn.SiLU())
        self.enter, at, skips = nn.Conv2d(3, CHANNELS, 3, padding=1), CHANNELS, [CHANNELS]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for i, leave in enumerate(wide):
            for _ in range(BLOCKS):
                self.down.append(ResBlock(at, leave, known))
                at = leave
                skips.append(at)
            if i < len(wide) - 1:
                self.down.append(nn.Conv2d(at, at, 3, 2, 1))
                skips.append(at)
        self.middle = ResBlock(at, at, known)
        for i, leave in reversed(list(enumerate(wide))):
            for _ in range(BLOCKS + 1):
                self.up.append(ResBlock(at + skips.pop(), leave, known))
                at = leave
            if i:
                self.up.append(nn.Conv2d(at, at, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(8, at), nn.Conv2d(at, 3, 3, padding=1)

    def forward(self, x, moments):
        turns = torch.exp(torch.arange(CHANNELS // 2, device=x.device) * (-math.log(1e4) / (CHANNELS // 2)))
        turns = moments[:, None] * turns
        known = self.know(torch.cat([turns.cos(), turns.sin()], 1))
        x = self.enter(x)
        kept = [x]
        for part in self.down:
            x = part(x, known) if isinstance(part, ResBlock) else part(x)
            kept.append(x)
        x = self.middle(x, known)
        for part in self.up:
            if isinstance(part, ResBlock):
                x = part(torch.cat([x, kept.pop()], 1), known)
            else:
                x = part(F.interpolate(x, scale_factor=2))
        return self.leave(F.silu(self.norm(x)))


def main():
    spots = torch.randn(CELLS, 3, SIZE // 4, SIZE // 4, device=device)
    cells = F.interpolate(spots, size=SIZE, mode="bilinear").tanh()
    share = torch.cos((torch.arange(MOMENTS, device=device) / MOMENTS + 0.008) / 1.008 * math.pi / 2) ** 2
    with device:
        model = UNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=low)
    sampler = LossSecondMoment()
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        clean = cells[torch.randint(CELLS, (BATCH,), device=device)].contiguous(
            memory_format=torch.channels_last
        )
        moments, scales = sampler.sample(BATCH)
        noise, left = torch.randn_like(clean), share[moments][:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(left.sqrt() * clean + (1 - left).sqrt() * noise, moments)
        losses = (found.float() - noise).square().mean((1, 2, 3))
        sampler.update(moments, losses.detach())
        loss = (losses * scales).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
