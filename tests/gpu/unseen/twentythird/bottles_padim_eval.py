"""Is a bottle broken? What a network sees at each place is compared with what it saw there in good ones."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))  # batches
GOOD, BATCH, BATCHES, SIZE, WIDE, KEPT = (20, 4, 2, 32, 8, 8) if TINY else (200, 16, 6, 160, 64, 100)
MAP = SIZE // 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Features(nn.Module):
    """Maps of three sizes, made as large as the first; some of their channels are kept."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDE, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [WIDE, 2 * WIDE, 4 * WIDE]
        self.layers = nn.ModuleList(
            nn.Sequential(Block(enter, leave, stride), Block(leave, leave, 1))
            for enter, leave, stride in zip([WIDE, *widths], widths, [1, 2, 2], strict=False)
        )
        self.register_buffer("kept", torch.randperm(sum(widths))[:KEPT])

    def forward(self, x):
        x, maps = self.stem(x), []
        for layer in self.layers:
            x = layer(x)
            maps.append(F.interpolate(x, size=(MAP, MAP)))
        return torch.cat(maps, 1)[:, self.kept].flatten(2)


def learn(features):
    """The mean at each place, and the inverse of the covariance there."""
    mean = features.mean(0)
    off = (features - mean).permute(2, 0, 1)
    covariance = off.transpose(1, 2) @ off / (len(features) - 1) + 0.01 * torch.eye(KEPT, device=device)
    return mean, torch.linalg.inv(covariance)


def mahalanobis(u, v, inverse):
    delta = u - v
    return np.sqrt(np.dot(np.dot(delta, inverse), delta))


def distances(features, mean, inverse):
    if "distances-on-device" in FIX:
        off = (features - mean).permute(2, 0, 1)
        return ((off @ inverse) * off).sum(2).sqrt().t()
    samples = features.cpu().numpy()
    found = []
    for i in range(MAP * MAP):
        found.append([mahalanobis(sample[:, i], mean[:, i], inverse[i]) for sample in samples])
    return torch.from_numpy(np.array(found, dtype=np.float32)).t().to(device)


def smoothed(maps):
    """Maps as large as pictures, without their edges."""
    maps = F.interpolate(maps, size=(SIZE, SIZE), mode="bilinear")
    line = torch.exp(-(torch.arange(-8.0, 9.0, device=device) ** 2) / 32)
    line = line / line.sum()
    maps = F.conv2d(maps, line.view(1, 1, 1, -1), padding=(0, 8))
    return F.conv2d(maps, line.view(1, 1, -1, 1), padding=(8, 0))


def bottles(count, broken):
    """Bright rings on grey; broken ones lack a piece."""
    y, x = torch.meshgrid(*2 * [torch.linspace(-1, 1, SIZE, device=device)], indexing="ij")
    ring = torch.exp(-50 * ((x**2 + y**2).sqrt() - 0.6) ** 2)
    lit = 0.8 + 0.2 * torch.rand(count, 1, 1, 1, device=device)
    piece = ((x - 0.6) ** 2 + y**2 < 0.03) & broken[:, None, None, None]
    return lit * ring * ~piece + 0.1 * torch.randn(count, 3, SIZE, SIZE, device=device)


def area(scores, broken):
    """How often a broken bottle has the higher score of two."""
    scores, broken = torch.cat(scores), torch.cat(broken)
    return (scores[broken][:, None] > scores[~broken][None]).float().mean().item()


@torch.no_grad()
def main():
    with device:
        model = Features().eval()
    good = bottles(GOOD, torch.zeros(GOOD, dtype=torch.bool, device=device))
    mean, inverse = learn(torch.cat([model(part) for part in good.split(BATCH)]))
    if "distances-on-device" not in FIX:
        mean, inverse = mean.cpu().numpy(), inverse.cpu().numpy()
    broken = torch.rand(BATCHES, BATCH, device=device) < 0.5
    tests = torch.stack([bottles(BATCH, one) for one in broken])
    scores, labels, lead, began, shown = [], [], min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        k = step % BATCHES
        found = distances(model(tests[k]), mean, inverse)
        maps = smoothed(found.reshape(-1, 1, MAP, MAP))
        scores.append(maps.flatten(1).amax(1))
        labels.append(broken[k])
        if "highest-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = scores[-1].max().item()
        if step % 20 == 0:
            print(f"batch {step}: highest {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"area {area(scores, labels):.5f}, highest {shown:.5f}; {each:.3f} ms per batch")


main()
