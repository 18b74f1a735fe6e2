"""Which part of a street is what? A network that sees cities is tested on pictures that it does not know."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))  # batches
KNOWN, BATCH, HIGH, WIDE, KINDS, WIDTHS = (
    (2, 2, 32, 64, 5, (8, 16, 16, 16)) if TINY else (4, 2, 512, 1024, 19, (64, 128, 256, 512))
)
NOTHING = 255
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Bottle(nn.Module):
    """Two convolutions around a residual."""

    def __init__(self, enter, wide, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, wide, 3, stride, dilation, dilation, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, dilation, dilation, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.skip = nn.Conv2d(enter, wide, 1, stride) if enter != wide or stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.skip(x) + self.norm2(self.conv2(y)), inplace=True)


class Pyramid(nn.Module):
    """What is seen with holes of several sizes, and of the whole picture."""

    def __init__(self, enter, wide):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Conv2d(enter, wide, 3 if hole else 1, padding=hole, dilation=max(hole, 1), bias=False)
            for hole in (0, 6, 12, 18)
        )
        self.whole, self.join = nn.Conv2d(enter, wide, 1), nn.Conv2d(5 * wide, wide, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) for _ in range(5))

    def forward(self, x):
        seen = [F.relu(norm(part(x))) for part, norm in zip(self.parts, self.norms[1:], strict=True)]
        seen.append(F.relu(self.whole(x.mean((2, 3), keepdim=True))).expand_as(seen[0]))
        return F.relu(self.norms[0](self.join(torch.cat(seen, 1))))


class Streets(nn.Module):
    def __init__(self):
        super().__init__()
        one, two, three, four = WIDTHS
        self.stem = nn.Sequential(nn.Conv2d(3, one, 7, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.low = nn.Sequential(Bottle(one, one), Bottle(one, one), Bottle(one, one))
        self.high = nn.Sequential(
            Bottle(one, two, 2), *(Bottle(two, two) for _ in range(3)),
            Bottle(two, three, 2), *(Bottle(three, three) for _ in range(5)),
            Bottle(three, four, 1, 2), *(Bottle(four, four, 1, 2) for _ in range(2)),
        )  # fmt: skip
        self.pyramid, self.near = Pyramid(four, three), nn.Conv2d(one, 48, 1)
        self.last = nn.Sequential(
            nn.Conv2d(three + 48, three, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(three, KINDS, 1)
        )

    def forward(self, x):
        size = x.shape[2:]
        low = self.low(self.stem(x))
        x = F.interpolate(self.pyramid(self.high(low)), low.shape[2:], mode="bilinear")
        x = self.last(torch.cat([x, self.near(low)], 1))
        return F.interpolate(x.float(), size, mode="bilinear")


class Meter:
    """Counts of what is there (rows) and what was seen (columns)."""

    def __init__(self):
        self.counts = np.zeros((KINDS, KINDS), np.int64)

    def add(self, labels, seen):
        known = labels != NOTHING
        pairs = KINDS * labels[known].astype(np.int64) + seen[known]
        self.counts += np.bincount(pairs, minlength=KINDS**2).reshape(KINDS, KINDS)

    def add_on_device(self, labels, seen):
        pairs = torch.where(labels == NOTHING, KINDS**2, KINDS * labels.long() + seen)
        counts = torch.bincount(pairs.flatten(), minlength=KINDS**2 + 1)[:-1]
        self.counts += counts.view(KINDS, KINDS).cpu().numpy()

    def overlaps(self):
        both = np.diag(self.counts)
        return both / np.maximum(self.counts.sum(0) + self.counts.sum(1) - both, 1)


def streets():
    """Pictures of squares of one colour each, whose kind the colour says."""
    tile = HIGH // 8
    kinds = torch.randint(KINDS, (BATCH, HIGH // tile, WIDE // tile))
    labels = kinds.repeat_interleave(tile, 1).repeat_interleave(tile, 2)
    colours = torch.stack([labels * 13, labels * 7, labels * 11], 1).to(torch.uint8)
    labels = labels.to(torch.uint8)
    noise = torch.randint(0, 40, colours.shape, dtype=torch.uint8)
    labels[torch.rand(labels.shape) < 0.03] = NOTHING
    pictures = (colours // 2 + noise).contiguous(memory_format=torch.channels_last)
    return (pictures.pin_memory(), labels.pin_memory()) if device.type == "cuda" else (pictures, labels)


@torch.no_grad()
def main():
    known = [streets() for _ in range(KNOWN)]
    with device:
        model = Streets().to(dtype).to(memory_format=torch.channels_last).eval()
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)))
    meter, lead, began = Meter(), min(STEPS // 2, 3), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        pictures, labels = known[step % KNOWN]
        pictures = (pictures.to(device, non_blocking=True).float() - mean) / std
        logits = model(pictures.to(dtype))
        if "counted-on-device" in FIX:
            meter.add_on_device(labels.to(device, non_blocking=True), logits.argmax(1))
        elif "argmax-on-device" in FIX:
            meter.add(labels.numpy(), logits.argmax(1).cpu().numpy())
        else:
            logits = logits.cpu().numpy()
            meter.add(labels.numpy(), np.argmax(logits, axis=1))
        if step % 10 == 0:
            print(f"{BATCH * (step + 1)} pictures: overlap {100 * meter.overlaps().mean():.3f} %")
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"overlap {100 * meter.overlaps().mean():.4f} %; {each:.3f} ms per batch")


main()
