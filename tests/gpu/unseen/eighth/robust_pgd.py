"""Adversarial training: a wide residual network learns small pictures that were made hard for it (PGD)."""

import os
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 120))
SIZE, SIDE, CLASSES, BATCH, WIDE, BLOCKS, ATTACKS = (
    (32, 8, 4, 8, 1, 1, 2) if TINY else (20_000, 32, 10, 128, 10, 2, 7)
)
EPSILON, ALPHA = 8 / 255, 2 / 255
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        equal = inputs == outputs and stride == 1
        self.shortcut = None if equal else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        return skip + self.conv2(F.relu(self.bn2(self.conv1(y))))


class WideResNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16, 16 * WIDE, 32 * WIDE, 64 * WIDE]
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        blocks = []
        for i, (a, b) in enumerate(pairwise(widths)):
            for j in range(BLOCKS):
                blocks.append(Block(a if j == 0 else b, b, 2 if i and j == 0 else 1))
        self.blocks, self.bn = nn.Sequential(*blocks), nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x):
        x = F.relu(self.bn(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Pictures:
    """All on the device, as bytes; shifted and mirrored when they are drawn."""

    def __init__(self):
        self.labels = torch.randint(CLASSES, (SIZE,), device=device)
        tints = torch.randint(0, 100, (CLASSES, 3, SIDE, SIDE), device=device, dtype=torch.uint8)
        grain = torch.randint(0, 150, (SIZE, 3, SIDE, SIDE), device=device, dtype=torch.uint8)
        self.images = grain + tints[self.labels]

    def epoch(self):
        order = torch.randperm(SIZE, device=device)
        for chosen in order.split(BATCH):
            if len(chosen) == BATCH:
                x = F.pad(self.images[chosen].float() / 255, (4, 4, 4, 4))
                top, left = torch.randint(0, 9, (2,)).tolist()
                x = x[:, :, top : top + SIDE, left : left + SIDE]
                x = x.flip(3) if torch.rand(()) < 0.5 else x
                yield x.contiguous(memory_format=torch.channels_last), self.labels[chosen]


def attack_pgd(model, x, y):
    """The worst that is found within epsilon of a picture."""
    model.eval()
    delta = torch.empty_like(x).uniform_(-EPSILON, EPSILON)
    delta = (x + delta).clamp(0, 1) - x
    for _ in range(ATTACKS):
        delta.requires_grad_(True)
        with half:
            loss = F.cross_entropy(model(x + delta), y)
        if "gradient-of-input" in FIX:
            gradient = torch.autograd.grad(loss, delta)[0]
        else:
            loss.backward()
            gradient = delta.grad.detach()
        delta = (delta.detach() + ALPHA * gradient.sign()).clamp(-EPSILON, EPSILON)
        delta = (x + delta).clamp(0, 1) - x
    model.train()
    return delta


pictures, model = Pictures(), WideResNet().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
step, times, shown = 0, [], (0.0, 0.0)
while step < STEPS:
    began = time.perf_counter()
    for x, y in pictures.epoch():
        if step == STEPS:
            break
        delta = attack_pgd(model, x, y)
        with half:
            logits = model(x + delta)
            loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item(), (logits.argmax(1) == y).float().mean().item()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        if step % 20 == 0:
            print(f"step {step}: loss {shown[0]:.4f}, robust accuracy {shown[1]:.3f}")
        step += 1
kept = times[min(STEPS // 2, 4) :]
print(f"loss {shown[0]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
