"""How well is land told from the air? Mean overlaps of what a network says with what there is."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 240))  # batches
BATCH, BATCHES, SIZE, KINDS, CHANNELS = (2, 2, 32, 4, 8) if TINY else (8, 6, 512, 24, 48)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class FPN(nn.Module):
    """Maps at four sizes, added up from the smallest on."""

    def __init__(self):
        super().__init__()
        widths = [CHANNELS * 2**i for i in range(4)]
        self.down = nn.ModuleList(
            Block(enter, leave, 2) for enter, leave in zip([3, *widths], widths, strict=False)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(wide, 2 * CHANNELS, 1) for wide in widths)
        self.smooth, self.head = Block(2 * CHANNELS, 2 * CHANNELS), nn.Conv2d(2 * CHANNELS, KINDS, 1)

    def forward(self, x):
        maps = []
        for block, lateral in zip(self.down, self.lateral, strict=True):
            x = block(x)
            maps.append(lateral(x))
        y = maps.pop()
        while maps:
            y = F.interpolate(y, scale_factor=2, mode="nearest") + maps.pop()
        return F.interpolate(self.head(self.smooth(y)), scale_factor=2, mode="bilinear")


class MeanIoU:
    """The overlap of each kind of land in each picture, where it is or was found."""

    def __init__(self):
        self.overlaps = [[] for _ in range(KINDS)]

    def add(self, kind, both, either):
        if either:
            self.overlaps[kind].append(both / either)

    def update(self, found, labels):
        if "counted-together" in FIX:
            self.update_together(found, labels)
            return
        for one, truth in zip(found, labels, strict=True):
            for kind in range(KINDS):
                said, right = one == kind, truth == kind
                both = (said & right).sum().item()
                either = (said | right).sum().item()
                self.add(kind, both, either)

    def update_together(self, found, labels):
        pictures = torch.arange(len(found), device=found.device)[:, None, None]
        places = ((pictures * KINDS + labels) * KINDS + found).flatten()
        counts = torch.bincount(places, minlength=len(found) * KINDS**2).view(-1, KINDS, KINDS)
        both = counts.diagonal(dim1=1, dim2=2)
        either = counts.sum(1) + counts.sum(2) - both
        for row in torch.stack([both, either], 2).tolist():
            for kind, (one, all_of_it) in enumerate(row):
                self.add(kind, one, all_of_it)

    def compute(self):
        means = [sum(one) / len(one) for one in self.overlaps if one]
        return sum(means) / len(means)


@torch.inference_mode()
def main():
    coarse = torch.randint(KINDS, (BATCHES, BATCH, SIZE // 16, SIZE // 16), device=device)
    labels = coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)
    images = torch.rand(BATCHES, BATCH, 3, SIZE, SIZE, device=device) + labels[:, :, None] / KINDS
    images = images.to(dtype)
    with device:
        model = FPN().to(dtype).to(memory_format=torch.channels_last).eval()
    score, lead, began, shown = MeanIoU(), min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        k = step % BATCHES
        logits = model(images[k].contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits.float(), labels[k])
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        score.update(logits.argmax(1), labels[k])
        if step % 20 == 0:
            print(f"batch {step}: overlap {score.compute():.4f}, loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"overlap {score.compute():.6f}, loss {shown:.5f}; {each:.3f} ms per batch")


main()
