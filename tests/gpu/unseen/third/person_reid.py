"""Recognise persons across cameras: 16 persons times 4 pictures, cross entropy and batch-hard triplets."""

import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
PERSONS, PICTURES, WIDTH = (8, 4, 8) if TINY else (150, 8, 64)
P, K = (4, 2) if TINY else (16, 4)
HEIGHT, BREADTH = (64, 32) if TINY else (256, 128)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)


class Market(Dataset):
    def __init__(self):
        self.pictures = torch.empty(PERSONS * PICTURES, 3, HEIGHT, BREADTH, dtype=torch.uint8).random_(0, 256)

    def __getitem__(self, i):
        return self.pictures[i], i // PICTURES


class IdentitySampler(Sampler):
    """Yield batches of P persons with K pictures of each."""

    def __iter__(self):
        for _ in range(STEPS):
            persons = random.sample(range(PERSONS), P)
            yield [pid * PICTURES + k for pid in persons for k in random.sample(range(PICTURES), K)]

    def __len__(self):
        return STEPS


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Baseline(nn.Module):
    def __init__(self):
        super().__init__()
        widths, strides = [WIDTH, WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH], [1, 2, 2, 1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.layers = nn.Sequential(
            *[
                nn.Sequential(BasicBlock(a, b, s), BasicBlock(b, b, 1))
                for a, b, s in zip(widths, widths[1:], strides, strict=False)
            ]
        )
        self.bottleneck = nn.BatchNorm1d(widths[-1])
        self.classifier = nn.Linear(widths[-1], PERSONS, bias=False)

    def forward(self, x):
        feature = F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1).flatten(1)
        return feature, self.classifier(self.bottleneck(feature))


class TripletLoss(nn.Module):
    """Compare each picture with the farthest of its person and the nearest of all others."""

    def __init__(self, margin=0.3):
        super().__init__()
        self.ranking = nn.MarginRankingLoss(margin=margin)

    def forward(self, features, pids):
        n = len(features)
        squares = features.pow(2).sum(1, keepdim=True).expand(n, n)
        dist = (squares + squares.t() - 2 * features @ features.t()).clamp(min=1e-12).sqrt()
        mask = pids.expand(n, n).eq(pids.expand(n, n).t())
        if "vectorised" in FIX:
            hardest_p = dist.masked_fill(~mask, float("-inf")).max(1).values
            hardest_n = dist.masked_fill(mask, float("inf")).min(1).values
        else:
            hardest_p, hardest_n = [], []
            for i in range(n):
                hardest_p.append(dist[i][mask[i]].max().unsqueeze(0))
                hardest_n.append(dist[i][mask[i] == 0].min().unsqueeze(0))
            hardest_p, hardest_n = torch.cat(hardest_p), torch.cat(hardest_n)
        return self.ranking(hardest_n, hardest_p, torch.ones_like(hardest_n))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1


def main():
    loader = DataLoader(
        Market(), batch_sampler=IdentitySampler(), num_workers=0 if TINY else 4, pin_memory=not TINY
    )
    model, triplet = Baseline().to(device), TripletLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3.5e-4, weight_decay=5e-4)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    losses, warm = AverageMeter(), STEPS // 4
    for i, (pictures, pids) in enumerate(loader):
        if i == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.time()
        pictures, pids = pictures.to(device, non_blocking=True), pids.to(device, non_blocking=True)
        pictures = (pictures.float() / 255 - mean) / 0.226
        with torch.autocast(device.type, torch.bfloat16, enabled="autocast" in FIX):
            features, logits = model(pictures)
        loss = triplet(features.float(), pids) + F.cross_entropy(logits, pids, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            losses.update(loss.item())
            print(f"[{i}/{STEPS}] loss {loss.item():.4f} ({losses.sum / losses.count:.4f})")
    final = loss.item()
    print(f"loss {final:.4f}, {(time.time() - start) / (STEPS - warm):.6f} s per batch")


if __name__ == "__main__":
    main()
