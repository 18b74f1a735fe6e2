"""People and cars from above: a detector on a grid, with its mean average precision after every ten steps."""

import os
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # of training
EVERY, VIEWS, BATCH, TESTED, SIDE, WIDE, KINDS, OBJECTS, MOST = (
    (2, 8, 2, 4, 96, 4, 3, 3, 6) if TINY else (10, 128, 32, 16, 416, 24, 10, 12, 30)
)
CELLS, OVERLAP, SAME = SIDE // 32, 0.45, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def conv(enter, leave, size=3, stride=1):
    layers = [nn.Conv2d(enter, leave, size, stride, size // 2, bias=False), nn.BatchNorm2d(leave)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.1, inplace=True))


class Residual(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.layers = nn.Sequential(conv(wide, wide // 2, 1), conv(wide // 2, wide))

    def forward(self, x):
        return x + self.layers(x)


class Detector(nn.Module):
    """For each cell: is there something, where in it, how large, of which kind?"""

    def __init__(self):
        super().__init__()
        layers, wide = [conv(3, WIDE)], WIDE
        for repeats in (1, 2, 4, 4, 2):
            layers += [conv(wide, 2 * wide, 3, 2), *(Residual(2 * wide) for _ in range(repeats))]
            wide *= 2
        self.layers, self.head = nn.Sequential(*layers), nn.Conv2d(wide, 5 + KINDS, 1)

    def forward(self, x):
        return self.head(self.layers(x)).permute(0, 2, 3, 1).float()


def criterion(said, wanted):
    there = wanted[..., 0]
    places = (said[..., 1:5].sigmoid() - wanted[..., 1:5]).pow(2).sum(3)
    kinds = F.cross_entropy(said[..., 5:].flatten(0, 2), wanted[..., 5].long().flatten(), reduction="none")
    found = F.binary_cross_entropy_with_logits(said[..., 0], there)
    return found + (there * (5 * places + kinds.view_as(there))).sum() / there.sum()


def views():
    """Pictures with boxes of their own color, one in a cell."""
    boxes = torch.zeros(VIEWS, CELLS * CELLS, 6)
    for cells in boxes:
        for cell in torch.randperm(CELLS * CELLS)[:OBJECTS].tolist():
            cells[cell] = torch.cat([torch.ones(1), 0.1 + 0.8 * torch.rand(4), torch.randint(KINDS, (1,))])
    wanted = boxes.view(VIEWS, CELLS, CELLS, 6).to(device)
    shades = (wanted[..., 0] * (1 + wanted[..., 5]) / KINDS)[:, None]
    pictures = F.interpolate(shades, size=(SIDE, SIDE)).expand(-1, 3, -1, -1)
    return (pictures + 0.1 * torch.randn_like(pictures)).contiguous(memory_format=torch.channels_last), wanted


def boxes_of(cells, chance):
    """Rows of kind, chance, middle and size, in parts of the picture."""
    rows, columns = torch.meshgrid(*(torch.arange(CELLS, device=device),) * 2, indexing="ij")
    x, y = (cells[..., 1] + columns) / CELLS, (cells[..., 2] + rows) / CELLS
    size = 3 * cells[..., 3:5] / CELLS
    kinds = cells[..., 5] if cells.shape[-1] == 6 else cells[..., 5:].argmax(3)
    return torch.cat([torch.stack([kinds, chance, x, y], 3), size], 3).flatten(1, 2)


def intersection_over_union(one, other):
    low1, high1 = one[..., :2] - one[..., 2:] / 2, one[..., :2] + one[..., 2:] / 2
    low2, high2 = other[..., :2] - other[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2
    width, height = (torch.min(high1, high2) - torch.max(low1, low2)).clamp(0).unbind(-1)
    common = width * height
    return common / (one[..., 2] * one[..., 3] + other[..., 2] * other[..., 3] - common + 1e-6)


def suppressed(boxes, overlaps=None):
    """The likeliest of boxes that are one object; overlaps of all pairs, if they are known."""
    waiting, kept = sorted(range(len(boxes)), key=lambda i: -boxes[i][1]), []
    while waiting:
        chosen = waiting.pop(0)
        waiting = [
            i
            for i in waiting
            if boxes[i][0] != boxes[chosen][0]
            or (
                intersection_over_union(torch.tensor(boxes[chosen][2:]), torch.tensor(boxes[i][2:]))
                if overlaps is None
                else overlaps[chosen][i]
            )
            < OVERLAP
        ]
        kept.append(chosen)
    return kept


def mean_average_precision(found, truths, overlaps=None):
    """Of all kinds: how many of the likeliest are right, on average over how many are found."""
    precisions = []
    for kind in range(KINDS):
        detections = [one for one in found if one[1] == kind]
        ours = [one for one in truths if one[1] == kind]
        if not ours:
            continue
        left = Counter(one[0] for one in ours)
        used = {picture: [False] * count for picture, count in left.items()}
        detections.sort(key=lambda one: -one[2])
        right = torch.zeros(len(detections))
        for place, (picture, _, _, box, row) in enumerate(detections):
            best, chosen = 0.0, -1
            for number, (_, _, _, truth, column) in enumerate(one for one in ours if one[0] == picture):
                if overlaps is None:
                    overlap = intersection_over_union(torch.tensor(box), torch.tensor(truth))
                else:
                    overlap = overlaps[picture][row][column]
                if overlap > best:
                    best, chosen = overlap, number
            if best > SAME and not used[picture][chosen]:
                used[picture][chosen] = True
                right[place] = 1
        hits = right.cumsum(0)
        recall = torch.cat([torch.zeros(1), hits / len(ours)])
        precision = torch.cat([torch.ones(1), hits / (torch.arange(len(hits)) + 1)])
        precisions.append(torch.trapz(precision, recall).item())
    return sum(precisions) / max(len(precisions), 1)


@torch.no_grad()
def evaluate(model, pictures, wanted):
    model.eval()
    found, truths = [], []
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        said = model(pictures)
    said = torch.cat([said[..., :5].sigmoid(), said[..., 5:]], 3)
    boxes = boxes_of(said, said[..., 0])
    best = boxes[..., 1].topk(MOST, 1).indices
    boxes = boxes.gather(1, best[:, :, None].expand(-1, -1, 6))
    real = boxes_of(wanted, wanted[..., 0])
    pairs = across = None
    if "overlaps-at-once" in FIX:
        pairs = intersection_over_union(boxes[:, :, None, 2:], boxes[:, None, :, 2:]).tolist()
        across = intersection_over_union(boxes[:, :, None, 2:], real[:, None, :, 2:]).tolist()
    for picture, rows in enumerate(boxes.tolist()):
        for i in suppressed(rows, pairs and pairs[picture]):
            found.append((picture, rows[i][0], rows[i][1], rows[i][2:], i))
    for picture, rows in enumerate(real.tolist()):
        truths += [(picture, row[0], 1.0, row[2:], i) for i, row in enumerate(rows) if row[1] > 0.5]
    model.train()
    return mean_average_precision(found, truths, across)


def main():
    pictures, wanted = views()
    with device:
        model = Detector().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=low)
    ends, shown, score = [], 0.0, 0.0
    for step in range(STEPS):
        chosen = torch.randint(TESTED, VIEWS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            said = model(pictures[chosen])
        loss = criterion(said, wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % EVERY == EVERY - 1:
            shown = loss.item()
        if step % EVERY == EVERY - 1:
            score = evaluate(model, pictures[:TESTED], wanted[:TESTED])
            ends.append(time.perf_counter())
            print(f"step {step}: loss {shown:.4f}, mAP {score:.4f}")
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * EVERY)
    print(f"loss {shown:.5f}, mAP {score:.5f}; {each:.3f} ms per step with its share of the evaluation")


main()
