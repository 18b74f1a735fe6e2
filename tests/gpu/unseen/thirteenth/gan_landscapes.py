"""Landscapes made by a pair of networks, and their distance to real ones after every twenty steps."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
ROUND, SIZE, BATCH, SIDE, NOISE, WIDE, JUDGED, FEATURES = (
    (2, 32, 4, 16, 8, 8, 64, 16) if TINY else (20, 4096, 256, 64, 128, 64, 2048, 768)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def generator():
    levels, wide = (SIDE // 4).bit_length() - 1, WIDE * SIDE // 8
    layers = [nn.ConvTranspose2d(NOISE, wide, 4), nn.BatchNorm2d(wide), nn.ReLU()]
    for _ in range(levels - 1):
        layers += [nn.ConvTranspose2d(wide, wide // 2, 4, 2, 1), nn.BatchNorm2d(wide // 2), nn.ReLU()]
        wide //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(wide, 3, 4, 2, 1), nn.Tanh())


def critic(wide, last):
    layers, enter = [], 3
    for _ in range((SIDE // 4).bit_length() - 1):
        layers += [nn.Conv2d(enter, wide, 4, 2, 1), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2)]
        enter, wide = wide, 2 * wide
    return nn.Sequential(*layers, nn.Conv2d(enter, last, 4), nn.Flatten())


class FrechetDistance:
    """Means and covariances of features of pictures, against those of real ones."""

    def __init__(self, real):
        with device:
            self.net = critic(WIDE // 2, FEATURES).eval().requires_grad_(False)
        self.net.to(memory_format=torch.channels_last)
        self.real, self.offset = self.features(real), 1e-6 * torch.eye(FEATURES, dtype=torch.float64)
        self.mean, self.spread = self.statistics(self.real.cpu().numpy())
        real = self.real.double()
        self.centre, self.cov = real.mean(0), torch.cov(real.T) + self.offset.to(device)
        values, vectors = torch.linalg.eigh(self.cov)
        self.root = (vectors * values.clamp(0).sqrt()) @ vectors.T

    @torch.no_grad()
    def features(self, images):
        return torch.cat([self.net(part).float() for part in images.split(BATCH)])

    def statistics(self, features):
        return features.mean(0, dtype=np.float64), np.cov(features.T, dtype=np.float64) + self.offset.numpy()

    @torch.no_grad()
    def __call__(self, model):
        drawn = torch.Generator(device).manual_seed(1)
        noise = torch.randn(JUDGED, NOISE, 1, 1, device=device, generator=drawn)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            fakes = torch.cat([model(part) for part in noise.split(BATCH)])
        features = self.features(fakes.float())
        if "distance-on-device" in FIX:
            return self.on_device(features.double()).item()
        mean, spread = self.statistics(features.cpu().numpy())
        root = sqrtm(self.spread @ spread)
        if np.iscomplexobj(root):
            root = root.real
        off = mean - self.mean
        return off @ off + np.trace(self.spread) + np.trace(spread) - 2 * np.trace(root)

    def on_device(self, features):
        off, cov = features.mean(0) - self.centre, torch.cov(features.T) + self.offset.to(device)
        values = torch.linalg.eigvalsh(self.root @ cov @ self.root)  # those of the product of both
        return off @ off + self.cov.trace() + cov.trace() - 2 * values.clamp(0).sqrt().sum()


def sqrtm(matrix):
    """The square root of a matrix by its eigenvectors."""
    values, vectors = np.linalg.eig(matrix)
    return (vectors * np.sqrt(values.astype(complex))) @ np.linalg.inv(vectors)


def main():
    real = F.interpolate(torch.rand(SIZE, 3, 6, 6, device=device), size=(SIDE, SIDE), mode="bilinear") * 2 - 1
    real = real.to(memory_format=torch.channels_last)
    with device:
        make, judge = (net.to(memory_format=torch.channels_last) for net in (generator(), critic(WIDE, 1)))
    to_make, to_judge = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=low) for net in (make, judge)
    )
    distance = FrechetDistance(real[:JUDGED])
    shown, far, ends = (0.0, 0.0), 0.0, []
    ones, zeros = torch.ones(BATCH, 1, device=device), torch.zeros(BATCH, 1, device=device)
    for step in range(STEPS):
        chosen = real[torch.randint(SIZE, (BATCH,), device=device)]
        noise = torch.randn(BATCH, NOISE, 1, 1, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            fake = make(noise)
            on_real, on_fake = judge(chosen), judge(fake.detach())
        judged = F.binary_cross_entropy_with_logits(on_real.float(), ones)
        judged = judged + F.binary_cross_entropy_with_logits(on_fake.float(), zeros)
        to_judge.zero_grad()
        judged.backward()
        to_judge.step()
        judge.requires_grad_(False)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            on_fake = judge(fake)
        made = F.binary_cross_entropy_with_logits(on_fake.float(), ones)
        to_make.zero_grad()
        made.backward()
        to_make.step()
        judge.requires_grad_(True)
        if "losses-rarely" not in FIX or step % ROUND == ROUND - 1:
            shown = judged.item(), made.item()
        if step % ROUND == ROUND - 1:
            far = distance(make)
            ends.append(time.perf_counter())
            print(f"step {step}: losses {shown[0]:.4f}, {shown[1]:.4f}, distance {far:.4f}")
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * ROUND)
    print(f"loss {shown[0]:.4f}, distance {far:.4f}; {each:.3f} ms per step with its share of the distance")


main()
