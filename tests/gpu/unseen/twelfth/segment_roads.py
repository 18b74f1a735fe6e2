"""Where are roads? A U-Net for pictures from the air, in mixed precision."""

import itertools
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, SIDE, WIDE, DEPTH = (4, 2, 32, 4, 2) if TINY else (32, 8, 512, 64, 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layout = torch.channels_last if "channels-last" in FIX else torch.contiguous_format
torch.manual_seed(0)


class Double(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        parts = []
        for a in (inputs, outputs):
            conv = nn.Conv2d(a, outputs, 3, padding=1, bias=False)
            parts += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDE * 2**i for i in range(DEPTH + 1)]
        self.enter = Double(3, WIDE)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[::-1])
        self.join = nn.ModuleList(Double(2 * a, a) for a, _ in pairs[::-1])
        self.last = nn.Conv2d(WIDE, 1, 1)

    def forward(self, x):
        found = [self.enter(x)]
        for part in self.down:
            found.append(part(F.max_pool2d(found[-1], 2)))
        x = found.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([found.pop(), up(x)], 1))
        return self.last(x)


def dice(chance, wanted):
    both = (chance * wanted).sum((1, 2, 3))
    return ((2 * both + 1) / (chance.sum((1, 2, 3)) + wanted.sum((1, 2, 3)) + 1)).mean()


@torch.no_grad()
def iou(logits, wanted):
    road = logits > 0
    real = wanted > 0.5
    return (road & real).sum() / (road | real).sum().clamp(1)


def fields():
    """Pictures with bright lines, on the device."""
    images = torch.rand(SIZE, 3, SIDE, SIDE, device=device)
    along = torch.arange(SIDE, device=device)
    place = torch.randint(SIDE // 4, SIDE // 2, (SIZE, 1, 1), device=device)
    slope = torch.rand(SIZE, 1, 1, device=device) - 0.5
    near = (along[:, None] - place - slope * along).abs() < SIDE // 40 + 1
    roads = near[:, None].float()
    return (images + 0.5 * roads).contiguous(memory_format=layout), roads


def main():
    cuda = device.type == "cuda"
    images, roads = fields()
    model = UNet().to(device, memory_format=layout)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    lead, began, shown, overlap = min(STEPS // 2, 4), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        wanted = roads[chosen]
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            logits = model(images[chosen]).float()
        loss = F.binary_cross_entropy_with_logits(logits, wanted) + 1 - dice(logits.sigmoid(), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, overlap = loss.item(), iou(logits, wanted).item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, overlap {overlap:.3f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
