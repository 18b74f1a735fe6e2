"""Detect objects in one look: a VGG with boxes of all sizes, of which some are matched with what is there."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, SIDE, KINDS, MOST, PLAN = (
    (8, 2, 48, 4, 3, (8, "M", 8, "M", 8, "M", 16, "+"))
    if TINY
    else (
        256, 32, 300, 21, 12,
        (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "+", "M", 512, 512, 512),
    )
)  # fmt: skip
EXTRA = (8, 8) if TINY else (512, 256, 256, 256)
THRESHOLD, NEGATIVES, VARIANCES = 0.5, 3, (0.1, 0.2)
RATIOS = ((1.0, 2.0, 0.5),) * 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class SSD(nn.Module):
    def __init__(self):
        super().__init__()
        enter, self.base, wides = 3, nn.ModuleList([nn.Sequential()]), []
        for one in PLAN:
            if one == "+":
                wides.append(enter)
                self.base.append(nn.Sequential())
            elif one == "M":
                self.base[-1].append(nn.MaxPool2d(2, ceil_mode=True))
            else:
                self.base[-1].extend([nn.Conv2d(enter, one, 3, padding=1), nn.ReLU(inplace=True)])
                enter = one
        self.base[-1].append(nn.Conv2d(enter, 2 * EXTRA[0], 1)).append(nn.ReLU(inplace=True))
        enter = 2 * EXTRA[0]
        wides.append(enter)
        self.extra = nn.ModuleList()
        for wide in EXTRA:
            self.extra.append(
                nn.Sequential(
                    nn.Conv2d(enter, wide // 2, 1), nn.ReLU(inplace=True),
                    nn.Conv2d(wide // 2, wide, 3, 2, 1), nn.ReLU(inplace=True),
                )
            )  # fmt: skip
            enter = wide
            wides.append(wide)
        count = len(RATIOS[0]) + 1
        self.boxes = nn.ModuleList(nn.Conv2d(wide, 4 * count, 3, padding=1) for wide in wides)
        self.kinds = nn.ModuleList(nn.Conv2d(wide, KINDS * count, 3, padding=1) for wide in wides)

    def forward(self, x):
        maps = []
        for part in self.base:
            x = part(x)
            maps.append(x)
        for part in self.extra:
            x = part(x)
            maps.append(x)
        boxes = [head(x).permute(0, 2, 3, 1).flatten(1) for head, x in zip(self.boxes, maps, strict=True)]
        kinds = [head(x).permute(0, 2, 3, 1).flatten(1) for head, x in zip(self.kinds, maps, strict=True)]
        sides = [x.shape[2] for x in maps]
        boxes, kinds = (
            torch.cat(boxes, 1).unflatten(1, (-1, 4)),
            torch.cat(kinds, 1).unflatten(1, (-1, KINDS)),
        )
        return boxes.float(), kinds.float(), sides


def prior_boxes(sides):
    """Of each place of each map: a square, a larger one, two that are flat or high; as middles and sizes."""
    found = []
    for i, (side, ratios) in enumerate(zip(sides, RATIOS, strict=False)):
        small, large = 0.1 + 0.75 * i / len(sides), 0.1 + 0.75 * (i + 1) / len(sides)
        y, x = torch.meshgrid(*(2 * [(torch.arange(side) + 0.5) / side]), indexing="ij")
        shapes = [(small * math.sqrt(one), small / math.sqrt(one)) for one in ratios]
        shapes.insert(1, (math.sqrt(small * large),) * 2)
        for place in torch.stack([x, y], 2).flatten(0, 1).tolist():
            found += [(*place, *shape) for shape in shapes]
    return torch.tensor(found, device=device).clamp(0, 1)


def corners(boxes):
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def overlaps(first, second):
    """Of each of the first with each of the second."""
    first, second = first.unsqueeze(-2), second.unsqueeze(-3)
    size = (torch.min(first[..., 2:], second[..., 2:]) - torch.max(first[..., :2], second[..., :2])).clamp(
        min=0
    )
    both = size.prod(-1)
    return both / (
        (first[..., 2:] - first[..., :2]).prod(-1) + (second[..., 2:] - second[..., :2]).prod(-1) - both
    )


def encode(matched, priors):
    middles = (matched[..., :2] + matched[..., 2:]) / 2 - priors[:, :2]
    sizes = ((matched[..., 2:] - matched[..., :2]) / priors[:, 2:]).log()
    return torch.cat([middles / (VARIANCES[0] * priors[:, 2:]), sizes / VARIANCES[1]], -1)


def match(truths, kinds, priors):
    """What each prior box of a picture has to become, and its kind; none is zero."""
    found = overlaps(truths, corners(priors))
    best_prior = found.max(1).indices
    best_overlap, best_truth = found.max(0)
    best_overlap.index_fill_(0, best_prior, 2.0)
    for j in range(best_prior.size(0)):
        best_truth[best_prior[j]] = j
    labels = kinds[best_truth] + 1
    labels[best_overlap < THRESHOLD] = 0
    return encode(truths[best_truth], priors), labels


def match_all(targets, priors):
    """The same for all pictures at once, of which some have fewer objects."""
    padded = pad_sequence(targets, batch_first=True, padding_value=-1.0)
    truths, kinds = padded[..., :4], padded[..., 4].long()
    there = kinds >= 0
    found = overlaps(truths, corners(priors)).masked_fill(~there[..., None], -1.0)
    best_prior = found.max(2).indices
    best_overlap, best_truth = found.max(1)
    for j in range(padded.shape[1]):
        place, real = best_prior[:, j : j + 1], there[:, j : j + 1]
        best_truth.scatter_(1, place, torch.where(real, j, best_truth.gather(1, place)))
        best_overlap.scatter_(1, place, torch.where(real, 2.0, best_overlap.gather(1, place)))
    labels = (kinds.gather(1, best_truth) + 1).masked_fill(best_overlap < THRESHOLD, 0)
    return encode(truths.gather(1, best_truth[..., None].expand(-1, -1, 4)), priors), labels


class MultiBoxLoss(nn.Module):
    def forward(self, boxes, kinds, priors, targets):
        count = len(boxes)
        with torch.no_grad():
            if "matched-at-once" in FIX:
                wanted, labels = match_all(targets, priors)
            else:
                wanted = torch.empty(count, len(priors), 4, device=boxes.device)
                labels = torch.empty(count, len(priors), dtype=torch.long, device=boxes.device)
                for i in range(count):
                    truths = targets[i][:, :-1]
                    wanted[i], labels[i] = match(truths, targets[i][:, -1].long(), priors)
        positive = labels > 0
        box_loss = F.smooth_l1_loss(boxes[positive], wanted[positive], reduction="sum")
        each = F.cross_entropy(kinds.flatten(0, 1), labels.flatten(), reduction="none").view(count, -1)
        hard = each.detach().masked_fill(positive, 0.0)
        rank = hard.sort(1, descending=True).indices.sort(1).indices
        negative = rank < (NEGATIVES * positive.sum(1, keepdim=True)).clamp(max=len(priors) - 1)
        total = positive.sum().clamp(min=1)
        return box_loss / total, each[positive | negative].sum() / total


def pictures():
    """Noise with brighter boxes, and the boxes of each."""
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=torch.bfloat16 if low else torch.float32)
    targets, generator = [], torch.Generator().manual_seed(1)
    for image in images:
        count = int(torch.randint(1 if TINY else 3, MOST + 1, (1,), generator=generator))
        size = 0.1 + 0.4 * torch.rand(count, 2, generator=generator)
        start = (1 - size) * torch.rand(count, 2, generator=generator)
        kinds = torch.randint(KINDS - 1, (count, 1), generator=generator)
        for (x, y), (wide, high), kind in zip(start.tolist(), size.tolist(), kinds.tolist(), strict=True):
            left, top = int(x * SIDE), int(y * SIDE)
            image[kind[0] % 3, top : top + int(high * SIDE), left : left + int(wide * SIDE)] += 2.0
        targets.append(torch.cat([start, start + size, kinds.float()], 1).to(device))
    return images.to(memory_format=torch.channels_last), targets


def main():
    images, targets = pictures()
    with device:
        model = SSD().to(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=low):
        priors = prior_boxes(model(images[:1])[2])
    criterion = MultiBoxLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 6), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randperm(SIZE)[:BATCH]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            boxes, kinds, _ = model(images[chosen.to(device)])
        box_loss, kind_loss = criterion(boxes, kinds, priors, [targets[i] for i in chosen.tolist()])
        optimizer.zero_grad()
        (box_loss + kind_loss).backward()
        optimizer.step()
        if "losses-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = box_loss.item(), kind_loss.item()
        if step % 10 == 0:
            print(f"iter {step} || boxes {shown[0]:.4f} || kinds {shown[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"boxes {shown[0]:.5f}, kinds {shown[1]:.5f}; {each:.3f} ms per step")


main()
