"""Label each point of a lidar's sweeps with a PointNet; compiled with CUDA graphs, for it has to be fast."""

import itertools
import os
import time

import numpy as np
import torch
import torch.nn as nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
SWEEPS = int(os.environ.get("STEPS", 6 if TINY else 250))
MEAN_POINTS, LIMIT, WIDTH = (120, 256, 16) if TINY else (9000, 16_384, 64)
CLASSES, RANGE = 20, 50.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def shared(*widths):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = shared(5, WIDTH, WIDTH)
        self.wide = shared(WIDTH, 2 * WIDTH, 16 * WIDTH)
        self.head = nn.Sequential(shared(17 * WIDTH, 4 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, CLASSES))

    def forward(self, points):  # (points, 4): x, y, z, intensity
        distance = points[:, :3].norm(dim=1, keepdim=True) / RANGE
        h = self.local(torch.cat([points[:, :3] / RANGE, points[:, 3:], distance], 1))
        whole = self.wide(h).amax(0, keepdim=True).expand(len(h), -1)
        logits = self.head(torch.cat([h, whole], 1))
        return logits.softmax(1).max(1)


class Lidar:
    """Sweeps of a drive: what comes back depends on what stands around."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for i in range(SWEEPS):
            count = int(MEAN_POINTS * (1.2 + 0.4 * np.sin(i / 15)) + self.rng.integers(0, MEAN_POINTS // 6))
            points = self.rng.standard_normal((count, 4), np.float32)
            points[:, :3] *= (25, 25, 2)
            yield points


def crop(points):
    """Leave out what is too far away or the car itself."""
    distance = np.hypot(points[:, 0], points[:, 1])
    return points[(distance < RANGE) & (distance > 1.5)]


class Segmenter:
    def __init__(self):
        self.model = PointNet().to(device).eval()
        if TINY:
            self.compiled = torch.compile(self.model, backend="aot_eager")
        elif "no-graphs" in FIX:
            self.compiled = torch.compile(self.model, dynamic=True)
        else:
            self.compiled = torch.compile(self.model, mode="reduce-overhead")

    @torch.inference_mode()
    def __call__(self, points):
        count = len(points)
        if "fixed-points" in FIX:
            points = np.concatenate([points, np.repeat(points[:1], LIMIT - count, 0)])
        confidence, label = self.compiled(torch.from_numpy(points).to(device))
        return confidence[:count].cpu().numpy(), label[:count].cpu().numpy()


def main():
    segmenter, warm = Segmenter(), SWEEPS // 3
    counts, sure, start = np.zeros(CLASSES, np.int64), [], 0.0
    for i, sweep in enumerate(Lidar()):
        if i == warm:
            start = time.perf_counter()
        confidence, label = segmenter(crop(sweep))
        counts += np.bincount(label, minlength=CLASSES)
        sure.append(confidence.mean())
        if i % 50 == 0:
            print(f"sweep {i}: {len(label)} points, {np.mean(sure):.4f} sure", flush=True)
    spent = time.perf_counter() - start
    print(f"most of class {counts.argmax()}, {np.mean(sure):.4f} sure, {counts.sum()} points")
    print(f"{1e3 * spent / (SWEEPS - warm):.4f} ms per sweep")


if __name__ == "__main__":
    main()
