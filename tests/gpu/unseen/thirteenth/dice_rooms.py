"""Rooms in 150 kinds of things: a small network with pyramids, by cross entropy and Dice."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SIDE, KINDS, WIDE = (8, 2, 32, 7, 8) if TINY else (32, 8, 512, 150, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def conv(enter, wide, stride=1):
    return nn.Sequential(
        nn.Conv2d(enter, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)
    )


class PyramidNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, WIDE, 2), conv(WIDE, WIDE, 2))
        self.downs = nn.ModuleList(
            nn.Sequential(conv(WIDE << i, WIDE << (i + 1), 2), conv(WIDE << (i + 1), WIDE << (i + 1)))
            for i in range(3)
        )
        self.sides = nn.ModuleList(nn.Conv2d(WIDE << i, 2 * WIDE, 1) for i in range(4))
        self.smooth, self.head = conv(2 * WIDE, 2 * WIDE), nn.Conv2d(2 * WIDE, KINDS, 1)

    def forward(self, x):
        seen = [self.stem(x)]
        for down in self.downs:
            seen.append(down(seen[-1]))
        y = self.sides[-1](seen[-1])
        for side, x in zip(self.sides[-2::-1], seen[-2::-1], strict=True):
            y = side(x) + F.interpolate(y, scale_factor=2.0)
        return F.interpolate(self.head(self.smooth(y)).float(), scale_factor=4, mode="bilinear")


class DiceLoss(nn.Module):
    """How little of each kind lies over each other, on average of kinds."""

    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, labels):
        chances = F.softmax(logits, 1)
        if "gathered" in FIX:
            there = labels.flatten(1)
            right = chances.gather(1, labels[:, None])[:, 0].flatten(1)
            empty = torch.zeros(len(labels), KINDS, device=labels.device)
            both = empty.scatter_add(1, there, right)
            count = empty.scatter_add(1, there, torch.ones_like(right))
        else:
            one_hot = F.one_hot(labels, KINDS).permute(0, 3, 1, 2).float()
            both = (chances * one_hot).sum((2, 3))
            count = one_hot.sum((2, 3))
        dice = (2 * both + self.smooth) / (chances.sum((2, 3)) + count + self.smooth)
        return 1 - dice.mean()


def rooms():
    """Large areas of one kind each, whose colours say a little of what they are."""
    coarse = torch.randint(KINDS, (SIZE, 1, SIDE // 16, SIDE // 16), device=device)
    labels = F.interpolate(coarse.float(), size=(SIDE, SIDE))[:, 0].long()
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device)
    images[:, 0] += labels / KINDS
    return images.to(memory_format=torch.channels_last), labels


def main():
    images, labels = rooms()
    with device:
        model = PyramidNet().to(memory_format=torch.channels_last)
    dice = DiceLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, max(STEPS, 100), 0.9)
    lead, began, shown, right = min(STEPS // 2, 6), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        target = labels[chosen]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(images[chosen])
        loss = F.cross_entropy(logits, target) + dice(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            right = (logits.argmax(1) == target).float().mean().item()
            print(f"step {step}: loss {shown:.4f}, right {right:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
