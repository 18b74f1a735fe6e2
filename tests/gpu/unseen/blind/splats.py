"""Fit a picture with 6000 flat gaussians, drawn tile by tile from front to back, in plain PyTorch."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
ITERATIONS = int(os.environ.get("STEPS", 4 if TINY else 40))
SIZE, TILE, COUNT = (64, 32, 60) if TINY else (256, 32, 6000)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(30)


def target_picture():
    y, x = torch.meshgrid(torch.linspace(0, 1, SIZE), torch.linspace(0, 1, SIZE), indexing="ij")
    rings = 0.5 + 0.5 * torch.sin(40 * ((x - 0.5) ** 2 + (y - 0.4) ** 2).sqrt())
    return torch.stack([rings, x * y, 1 - rings * y], -1).to(device)


class Gaussians(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.rand(COUNT, 2) * SIZE)
        self.log_scales = nn.Parameter(torch.full((COUNT, 2), math.log(3.0)) + 0.3 * torch.randn(COUNT, 2))
        self.angles = nn.Parameter(torch.rand(COUNT, 1) * math.pi)
        self.colours = nn.Parameter(torch.randn(COUNT, 3) * 0.3)
        self.opacities = nn.Parameter(torch.full((COUNT, 1), -1.0))

    def radii(self):
        return 3 * self.log_scales.exp().amax(1)


def in_tile(means, radii, corner):
    """Gaussians that reach into a tile, nearest first (they are kept in order of depth)."""
    low, high = means - radii[:, None], means + radii[:, None]
    return ((high >= corner) & (low <= corner + TILE)).all(1)


def alphas(pixels, means, log_scales, angles, opacities):
    """How much each gaussian covers each pixel: pixels (…, P, 2), gaussians (…, N, …) to (…, N, P)."""
    dx = pixels[..., None, :, 0] - means[..., :, 0:1]
    dy = pixels[..., None, :, 1] - means[..., :, 1:2]
    cos, sin = angles.cos(), angles.sin()
    along, across = cos * dx + sin * dy, cos * dy - sin * dx
    sx, sy = log_scales.exp().split(1, -1)
    power = -0.5 * ((along / sx) ** 2 + (across / sy) ** 2)
    return (opacities.sigmoid() * power.exp()).clamp(max=0.99)


def composite(alpha, colours):
    """From front to back: (…, N, P) and (…, N, 3) to (…, P, 3)."""
    seen = torch.cumprod(1 - alpha, -2)
    seen = torch.cat([torch.ones_like(seen[..., :1, :]), seen[..., :-1, :]], -2)
    return (alpha * seen).transpose(-1, -2) @ colours.sigmoid()


offsets = torch.stack(torch.meshgrid(torch.arange(TILE), torch.arange(TILE), indexing="xy"), -1)
offsets = offsets.reshape(-1, 2).to(device) + 0.5
per_side = SIZE // TILE
corners = torch.tensor(
    [(x * TILE, y * TILE) for y in range(per_side) for x in range(per_side)], device=device
)


def render(g):
    """Tile after tile."""
    rows, tiles, radii = [], [], g.radii().detach()
    if "one-sync" in FIX:
        hits = torch.stack([in_tile(g.means.detach(), radii, corner) for corner in corners])
        lists = hits.nonzero()[:, 1].split(hits.sum(1).tolist())
    together = None
    if "packed" in FIX:
        together = torch.cat([g.means, g.log_scales, g.angles, g.colours, g.opacities], 1)
    for number, corner in enumerate(corners):
        ids = lists[number] if "one-sync" in FIX else in_tile(g.means.detach(), radii, corner).nonzero()[:, 0]
        if together is not None:
            chosen = together.index_select(0, ids)
            means, scales, angles, colours, opacities = chosen.split((2, 2, 1, 3, 1), 1)
        else:
            means, scales, angles = g.means[ids], g.log_scales[ids], g.angles[ids]
            colours, opacities = g.colours[ids], g.opacities[ids]
        alpha = alphas(offsets + corner, means, scales, angles, opacities)
        tiles.append(composite(alpha, colours).view(TILE, TILE, 3))
    for y in range(per_side):
        rows.append(torch.cat(tiles[y * per_side : (y + 1) * per_side], 1))
    return torch.cat(rows, 0)


def render_batched(g):
    """All tiles at once, each with as many places as the fullest one needs."""
    low, high = (g.means.detach() + sign * g.radii().detach()[:, None] for sign in (-1, 1))
    hits = ((high[None] >= corners[:, None]) & (low[None] <= corners[:, None] + TILE)).all(-1)
    longest = int(hits.sum(1).max())
    order = hits.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
    present = hits.gather(1, order).unsqueeze(-1)
    packed = torch.cat([g.means, g.log_scales, g.angles, g.colours, g.opacities], 1)
    packed = packed.index_select(0, order.flatten()).view(*order.shape, -1)
    means, scales, angles, colours, opacities = packed.split((2, 2, 1, 3, 1), -1)
    alpha = alphas(offsets + corners[:, None], means, scales, angles, opacities) * present
    tiles = composite(alpha, colours).view(per_side, per_side, TILE, TILE, 3)
    return tiles.permute(0, 2, 1, 3, 4).reshape(SIZE, SIZE, 3)


model, target = Gaussians().to(device), target_picture()
optimizer = torch.optim.Adam(
    [
        {"params": [model.means], "lr": 0.3},
        {"params": [model.log_scales, model.angles], "lr": 0.01},
        {"params": [model.colours, model.opacities], "lr": 0.03},
    ]
)
times = []
for iteration in range(ITERATIONS):
    start = time.perf_counter()
    picture = render_batched(model) if "batched-tiles" in FIX else render(model)
    loss = 0.8 * F.l1_loss(picture, target) + 0.2 * F.mse_loss(picture, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.item()
    times.append(time.perf_counter() - start)
    if iteration % 10 == 0:
        psnr = -10 * math.log10(F.mse_loss(picture.detach(), target).item())
        print(f"[ITER {iteration}] loss {shown:.5f} PSNR {psnr:.2f}")
settled = times[ITERATIONS // 4 :]
print(f"loss {shown:.5f}, {sum(settled) / len(settled) * 1e3:.4f} ms/iteration")
