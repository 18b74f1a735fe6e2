"""Panoptic quality of a street segmenter: pixels are given to the nearest of the objects that were found."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # batches
BATCH, BATCHES, HIGH, WIDE, OBJECTS, KINDS, CHANNELS = (
    (2, 2, 24, 32, 5, 3, 8) if TINY else (4, 6, 512, 1024, 32, 19, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Segmenter(nn.Module):
    """How far each pixel is from the middle of its object, at a quarter of the size, then of all pixels."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(
            Block(enter, leave, 2)
            for enter, leave in ((3, CHANNELS), (CHANNELS, 2 * CHANNELS), (2 * CHANNELS, 4 * CHANNELS))
        )
        self.up = nn.Conv2d(4 * CHANNELS, 2 * CHANNELS, 1)
        self.fuse, self.head = Block(2 * CHANNELS, 2 * CHANNELS, 1), nn.Conv2d(2 * CHANNELS, 2, 1)

    def forward(self, x):
        half = self.down[0](x)
        quarter = self.down[1](half)
        x = self.up(self.down[2](quarter))
        x = self.fuse(F.interpolate(x, scale_factor=2, mode="nearest") + quarter)
        return F.interpolate(torch.tanh(self.head(x)), scale_factor=4, mode="bilinear")


def nearest(places, middles):
    """The nearest object of each place, (pixels, 2) and (objects, 2)."""
    return torch.cdist(places, middles).argmin(1)


def iou(labels, found, g, p):
    mine, theirs = labels == g, found == p
    return (mine & theirs).sum().item() / (mine | theirs).sum().item()


class PanopticQuality:
    def __init__(self):
        self.overlap, self.right, self.missed, self.wrong = 0.0, 0, 0, 0

    def matches(self, labels, found, label_kinds, found_kinds):
        """Pairs of an object and what was found, with more than half in common, and how much they have."""
        if "counted-together" in FIX:
            counts = torch.bincount(labels * OBJECTS + found, minlength=OBJECTS**2).view(OBJECTS, OBJECTS)
            unions = counts.sum(1)[:, None] + counts.sum(0) - counts
            both, either = counts.tolist(), unions.tolist()
            here = [g for g in range(OBJECTS) if sum(both[g])]
            there = [p for p in range(OBJECTS) if sum(row[p] for row in both)]
            pairs = [(g, p, both[g][p] / either[g][p]) for g in here for p in there if both[g][p]]
            pairs = [(g, p, one) for g, p, one in pairs if label_kinds[g] == found_kinds[p] and one > 0.5]
            return pairs, len(here), len(there)
        pairs = []
        here, there = torch.unique(labels).tolist(), torch.unique(found).tolist()
        for g in here:
            for p in torch.unique(found[labels == g]).tolist():
                if label_kinds[g] != found_kinds[p]:
                    continue
                one = iou(labels, found, g, p)
                if one > 0.5:
                    pairs.append((g, p, one))
        return pairs, len(here), len(there)

    def update(self, labels, found, label_kinds, found_kinds):
        for one in zip(labels, found, label_kinds, found_kinds, strict=True):
            pairs, here, there = self.matches(*one)
            self.overlap += sum(one for _, _, one in pairs)
            self.right += len(pairs)
            self.missed += here - len(pairs)
            self.wrong += there - len(pairs)

    def compute(self):
        return self.overlap / max(1, self.right + 0.5 * self.missed + 0.5 * self.wrong)


@torch.inference_mode()
def main():
    y, x = torch.meshgrid(torch.arange(HIGH, device=device), torch.arange(WIDE, device=device), indexing="ij")
    pixels = torch.stack([y, x], 2).flatten(0, 1).float()
    size = torch.tensor([HIGH, WIDE], device=device)
    middles = torch.rand(BATCHES, BATCH, OBJECTS, 2, device=device) * size
    kinds = torch.randint(KINDS, (BATCHES, BATCH, OBJECTS)).tolist()
    seen = middles + 0.02 * HIGH * torch.randn_like(middles)  # where objects were found
    labels = torch.stack([torch.stack([nearest(pixels, one) for one in batch]) for batch in middles])
    images = torch.rand(BATCHES, BATCH, 3, HIGH, WIDE, device=device, dtype=dtype)
    with device:
        model = Segmenter().to(dtype).to(memory_format=torch.channels_last).eval()
    quality, lead, began, far = PanopticQuality(), min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        k = step % BATCHES
        off = model(images[k].contiguous(memory_format=torch.channels_last)).float()
        if "far-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            far = off.norm(dim=1).mean().item()
        places = pixels + 0.01 * HIGH * off.flatten(2).transpose(1, 2)
        found = [nearest(one, middle) for one, middle in zip(places, seen[k], strict=True)]
        quality.update(labels[k], found, kinds[k], kinds[k])
        if step % 10 == 0:
            print(f"batch {step}: quality {quality.compute():.4f}, off by {far:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"quality {quality.compute():.6f}, off by {far:.4f}; {each:.3f} ms per batch")


main()
