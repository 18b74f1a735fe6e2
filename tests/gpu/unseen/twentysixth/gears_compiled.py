"""Scanned gears: a compiled PointNet says which part one is, learning from points dropped and moved."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
CLOUDS, BATCH, POINTS, WIDE, KINDS, WORKERS = (32, 4, 32, 8, 5, 0) if TINY else (25600, 512, 1024, 64, 40, 8)
DROPPED = 0.875
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Gears(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(KINDS, size=CLOUDS)
        shapes = 0.2 + rng.random((KINDS, 3), dtype=np.float32)
        self.points = (
            rng.standard_normal((CLOUDS, POINTS, 3), dtype=np.float32) * shapes[self.labels][:, None]
        )

    def __len__(self):
        return CLOUDS

    def __getitem__(self, index):
        points = self.points[index]
        points = points - points.mean(0)
        return points / np.sqrt((points**2).sum(1).max()), self.labels[index]


def random_point_dropout(batch, rng):
    """Points that are dropped are where the first one is."""
    for cloud in batch:
        ratio = DROPPED * rng.random()
        dropped = np.where(rng.random(POINTS) <= ratio)[0]
        if len(dropped) > 0:
            cloud[dropped] = cloud[0]
    return batch


def random_scale(batch, rng):
    scales = rng.uniform(0.8, 1.25, len(batch))
    for index in range(len(batch)):
        batch[index] *= scales[index]
    return batch


def around(angles):
    """Matrices that turn points around the upright axis."""
    turned, ones = np.zeros((len(angles), 3, 3), np.float32), np.ones(len(angles))
    turned[:, 0, 0], turned[:, 0, 2], turned[:, 1, 1] = np.cos(angles), np.sin(angles), ones
    turned[:, 2, 0], turned[:, 2, 2] = -np.sin(angles), np.cos(angles)
    return turned


def rotate(batch, rng):
    turned = around(rng.uniform(0, 2 * np.pi, len(batch)))
    for index in range(len(batch)):
        batch[index] = batch[index] @ turned[index]
    return batch


def shift(batch, rng):
    shifts = rng.uniform(-0.1, 0.1, (len(batch), 3))
    for index in range(len(batch)):
        batch[index] += shifts[index]
    return batch


def augmented(points, rng):
    if "clouds-together" in FIX:
        drawn = rng.random((len(points), 1 + POINTS))
        scales = rng.uniform(0.8, 1.25, (len(points), 1, 1))
        turned = around(rng.uniform(0, 2 * np.pi, len(points)))
        shifts = rng.uniform(-0.1, 0.1, (len(points), 1, 3))
        arrays = drawn, scales, turned, shifts
        drawn, scales, turned, shifts = (torch.from_numpy(one).to(device) for one in arrays)
        points, dropped = points.to(device), drawn[:, 1:] <= DROPPED * drawn[:, :1]
        points = torch.where(dropped[:, :, None], points[:, :1], points)
        return (points * scales.float()) @ turned + shifts.float()
    points = random_point_dropout(points.numpy(), rng)
    points = shift(rotate(random_scale(points, rng), rng), rng)
    return torch.from_numpy(points).to(device)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (3, WIDE, WIDE, WIDE, 2 * WIDE, 16 * WIDE)
        layers = []
        for enter, leave in pairwise(widths):
            layers += [nn.Conv1d(enter, leave, 1, bias=False), nn.BatchNorm1d(leave), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(16 * WIDE, 8 * WIDE, bias=False), nn.BatchNorm1d(8 * WIDE), nn.ReLU(),
            nn.Linear(8 * WIDE, 4 * WIDE, bias=False), nn.BatchNorm1d(4 * WIDE), nn.ReLU(),
            nn.Linear(4 * WIDE, KINDS),
        )  # fmt: skip

    def forward(self, points):
        return self.classifier(self.points(points.transpose(1, 2)).amax(2))


def batches(loader):
    while True:
        yield from loader


def main():
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        Gears(), BATCH, shuffle=True, drop_last=True, num_workers=WORKERS,
        persistent_workers=WORKERS > 0, generator=order,
    )  # fmt: skip
    feed, rng = batches(loader), np.random.default_rng(1)
    model = PointNet().to(device)
    run = torch.compile(model) if low else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-4, fused="optimizer-fused" in FIX)
    lead, began, right = min(STEPS // 2, 16), 0.0, torch.zeros((), dtype=torch.long, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        points, labels = next(feed)
        points, labels = augmented(points, rng), labels.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = run(points)
        loss = F.cross_entropy(found.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (found.argmax(1) == labels).sum()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {right.item()} of {(step + 1) * BATCH} right")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {loss.item():.6f}, {right.item()} right; {each:.3f} ms per step")


main()
