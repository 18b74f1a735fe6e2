"""The other side of a car: a network completes clouds of points that a laser saw from one side."""

import os
import time
from itertools import pairwise

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
CLOUDS, BATCH, SEEN, COARSE, GRID, WIDE = (8, 2, 32, 16, 2, 16) if TINY else (256, 16, 2048, 1024, 2, 512)
FINE = COARSE * GRID * GRID
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


def shared(*wide):
    """Layers that each point goes through by itself."""
    layers = []
    for enter, leave in pairwise(wide):
        layers += [nn.Linear(enter, leave), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class PCN(nn.Module):
    """A description of the whole cloud, few points from it, and a small patch around each."""

    def __init__(self):
        super().__init__()
        self.first, self.second = shared(3, WIDE // 4, WIDE // 2), shared(WIDE, WIDE, 2 * WIDE)
        self.coarse = shared(2 * WIDE, 2 * WIDE, 2 * WIDE, 3 * COARSE)
        self.fold = shared(2 * WIDE + 5, WIDE, WIDE, 3)
        steps = torch.linspace(-0.05, 0.05, GRID)
        self.register_buffer("patch", torch.cartesian_prod(steps, steps))

    def forward(self, seen):
        x = self.first(seen)
        x = torch.cat([x, x.amax(1, keepdim=True).expand_as(x)], 2)
        whole = self.second(x).amax(1)
        coarse = self.coarse(whole).view(-1, COARSE, 3)
        centers = coarse.repeat_interleave(GRID * GRID, 1)
        patch = self.patch.repeat(COARSE, 1).expand(len(seen), -1, -1)
        given = torch.cat([patch, centers, whole[:, None].expand(-1, FINE, -1)], 2)
        return coarse, centers + self.fold(given)


def chamfer(ours, theirs):
    """How far is it from each point to the nearest of the others, both ways?"""
    if "product" in FIX:
        with torch.no_grad():
            square, theirs_square = ours.pow(2).sum(2, keepdim=True), theirs.pow(2).sum(2, keepdim=True)
            left = torch.cat([-2 * ours, square, torch.ones_like(square)], 2)
            right = torch.cat([theirs, torch.ones_like(theirs_square), theirs_square], 2)
            apart = left @ right.mT
            to_theirs, to_ours = apart.argmin(2), apart.argmin(1)
        near = theirs.gather(1, to_theirs[:, :, None].expand(-1, -1, 3))
        there = (ours - near).pow(2).sum(2)
        near = ours.gather(1, to_ours[:, :, None].expand(-1, -1, 3))
        return there.mean() + (near - theirs).pow(2).sum(2).mean()
    apart = (ours.unsqueeze(2) - theirs.unsqueeze(1)).pow(2).sum(3)
    return apart.min(2)[0].mean() + apart.min(1)[0].mean()


def cars():
    """Points on boxes with round edges, and those that lie on the side of the laser."""
    points = torch.randn(CLOUDS, 4 * FINE, 3, device=device)
    points = points / points.norm(p=4, dim=2, keepdim=True)
    points = points * torch.tensor([1.0, 0.5, 0.4], device=device)
    points = points * (0.8 + 0.4 * torch.rand(CLOUDS, 1, 3, device=device))
    seen = torch.stack([cloud[cloud[:, 0] + cloud[:, 1] > 0][:SEEN] for cloud in points])
    return seen, points[:, :FINE].contiguous()


def main():
    seen, whole = cars()
    with device:
        model = PCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(CLOUDS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            coarse, fine = model(seen[chosen])
        alpha = min(0.01 + step / 1000, 1.0)
        loss = chamfer(coarse.float(), whole[chosen]) + alpha * chamfer(fine.float(), whole[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
