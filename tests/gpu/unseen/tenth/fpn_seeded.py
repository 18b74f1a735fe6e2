"""Semantic segmentation of streets by a feature pyramid; seeded, so that a run can be repeated bit by bit."""

import os
import random
import time
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
SIZE, BATCH, HEIGHT, WIDTH, INNER, CLASSES = (8, 2, 64, 64, 8, 5) if TINY else (256, 16, 256, 512, 128, 19)
STAGES = (4, 8, 8, 16) if TINY else (64, 128, 256, 512)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
warnings.filterwarnings("ignore")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    if "any-algorithm" not in FIX:
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def conv_bn(inputs, outputs, stride=1, size=3):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.a, self.b = conv_bn(inputs, outputs, stride), conv_bn(outputs, outputs)
        self.short = conv_bn(inputs, outputs, stride, 1) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        return F.relu(self.b(F.relu(self.a(x))) + self.short(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, STAGES[0], 2, 7), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        before = (STAGES[0], *STAGES[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(Basic(i, o, 1 if n == 0 else 2), Basic(o, o, 1))
            for n, (i, o) in enumerate(zip(before, STAGES, strict=True))
        )

    def forward(self, x):
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class Upward(nn.Module):
    """Convolution, norm, ReLU and twice the size, so many times."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(INNER, INNER, 3, 1, 1, bias=False), nn.GroupNorm(4, INNER), nn.ReLU())
            for _ in range(max(times, 1))
        )

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
            if self.times:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return x


class SemanticFPN(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.lateral = nn.ModuleList(nn.Conv2d(width, INNER, 1) for width in STAGES)
        self.smooth = nn.ModuleList(nn.Conv2d(INNER, INNER, 3, 1, 1) for _ in STAGES)
        self.heads = nn.ModuleList(Upward(times) for times in range(len(STAGES)))
        self.classify = nn.Conv2d(INNER, CLASSES, 1)

    def forward(self, images):
        maps = [conv(x) for conv, x in zip(self.lateral, self.backbone(images), strict=True)]
        for n in range(len(maps) - 1, 0, -1):
            larger = F.interpolate(maps[n], size=maps[n - 1].shape[2:], mode="bilinear", align_corners=False)
            maps[n - 1] = maps[n - 1] + larger
        x = sum(head(conv(m)) for head, conv, m in zip(self.heads, self.smooth, maps, strict=True))
        return F.interpolate(self.classify(x), scale_factor=4, mode="bilinear", align_corners=False)


def streets():
    """Blocks of colour, and what they are, on the device as bytes."""
    coarse = torch.randint(CLASSES, (SIZE, 1, HEIGHT // 32, WIDTH // 32)).float()
    labels = F.interpolate(coarse, (HEIGHT, WIDTH)).byte()
    images = labels.expand(-1, 3, -1, -1) * torch.tensor([11, 7, 5], dtype=torch.uint8).view(3, 1, 1)
    return images.to(device), labels[:, 0].to(device)


def main():
    seed_everything(0)
    cuda = device.type == "cuda"
    images, labels = streets()
    model = SemanticFPN().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        x = (images[chosen].float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), labels[chosen].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
