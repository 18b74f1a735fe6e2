"""Pictures without labels: in each epoch their features are grouped, and the groups are then learned."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 80))  # of training
SIZE, BATCH, SIDE, FEATURES, GROUPS, ROUNDS, WIDTHS = (
    (24, 8, 16, 8, 4, 3, (8, 16)) if TINY else (5120, 256, 96, 256, 200, 15, (64, 128, 256, 512))
)
EPOCH = SIZE // BATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.skip(x) + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()
        )
        enters = (WIDTHS[0], *WIDTHS[:-1])
        self.blocks = nn.Sequential(
            *[
                Residual(enter, wide, 1 + (i > 0))
                for i, (enter, wide) in enumerate(zip(enters, WIDTHS, strict=True))
            ]
        )
        self.project, self.top = nn.Linear(WIDTHS[-1], FEATURES), nn.Linear(FEATURES, GROUPS)

    def features(self, x):
        return self.project(self.blocks(self.stem(x)).mean((2, 3)))

    def forward(self, x):
        return self.top(F.relu(self.features(x)))


@torch.no_grad()
def all_features(model, images):
    """The first phase: what the network sees in all pictures, lengths made one."""
    model.eval()
    found = []
    for part in images.split(BATCH):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found.append(model.features(part).float())
    model.train()
    return F.normalize(torch.cat(found), dim=1)


def grouped(features, rng):
    """The second phase: the nearest of some means, which then become the means of what is nearest."""
    features = features.cpu().numpy().astype(np.float64)
    means = features[rng.choice(len(features), GROUPS, replace=False)]
    for _ in range(ROUNDS):
        far = (features**2).sum(1)[:, None] - 2 * features @ means.T + (means**2).sum(1)[None]
        nearest = far.argmin(1)
        for group in range(GROUPS):
            mine = features[nearest == group]
            if len(mine):
                means[group] = mine.mean(0)
    return torch.from_numpy(nearest).to(device), far.min(1).mean()


def grouped_on_device(features, rng):
    features = features.double()
    means = features[torch.from_numpy(rng.choice(len(features), GROUPS, replace=False)).to(device)]
    for _ in range(ROUNDS):
        far = features.square().sum(1)[:, None] - 2 * features @ means.T + means.square().sum(1)[None]
        nearest = far.argmin(1)
        counts = torch.bincount(nearest, minlength=GROUPS)[:, None]
        sums = torch.zeros_like(means).index_add_(0, nearest, features)
        means = torch.where(counts > 0, sums / counts.clamp(min=1), means)
    return nearest, far.amin(1).mean().item()


def pictures():
    """Noise over one of some patterns, on the device."""
    patterns = F.interpolate(torch.randn(3 * GROUPS, 3, 6, 6, device=device), size=SIDE, mode="bilinear")
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device) / 2
    images += patterns[torch.randint(len(patterns), (SIZE,), device=device)]
    images = images.to(torch.bfloat16 if low else torch.float32)
    return images.contiguous(memory_format=torch.channels_last)


def main():
    images, rng = pictures(), np.random.default_rng(0)
    with device:
        model = Net()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5, fused=low)
    ends, shown, far = [], 0.0, 0.0
    cluster = grouped_on_device if "groups-on-device" in FIX else grouped
    for step in range(STEPS):
        if step % EPOCH == 0:
            labels, far = cluster(all_features(model, images), rng)
            nn.init.normal_(model.top.weight, std=0.01)  # groups have other numbers than before
            nn.init.zeros_(model.top.bias)
            order = torch.randperm(SIZE, device=device).split(BATCH)
        chosen = order[step % EPOCH]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(images[chosen])
        loss = F.cross_entropy(logits.float(), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % EPOCH == EPOCH - 1:
            shown = loss.item()
        if step % EPOCH == EPOCH - 1:
            ends.append(time.perf_counter())
            print(f"epoch {len(ends)}: loss {shown:.4f}, distance {far:.4f}")
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * EPOCH)
    print(f"loss {shown:.5f}, distance {far:.5f}; {each:.3f} ms per step with its share of the grouping")


main()
