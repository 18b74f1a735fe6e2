"""What stands where? A detector with three grids of anchors, taught by boxes that people drew."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, SIDE, CLASSES, BOXES, WIDE = (4, 2, 64, 3, 2, 8) if TINY else (64, 16, 416, 20, 6, 32)
ANCHORS = [
    [(116, 90), (156, 198), (373, 326)],
    [(30, 61), (62, 45), (59, 119)],
    [(10, 13), (16, 30), (33, 23)],
]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def unit(inputs, outputs, kernel=3, stride=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.squeeze, self.widen = unit(width, width // 2, 1), unit(width // 2, width)

    def forward(self, x):
        return x + self.widen(self.squeeze(x))


class Detector(nn.Module):
    """A small Darknet; each grid foresees a box, whether it is there, and of what class, for each anchor."""

    def __init__(self):
        super().__init__()
        widths = [WIDE * 2**i for i in range(6)]
        self.enter, self.stages = unit(3, WIDE), nn.ModuleList()
        for a, b, count in zip(widths[:-1], widths[1:], (1, 2, 4, 4, 2), strict=True):
            self.stages.append(nn.Sequential(unit(a, b, 3, 2), *(Residual(b) for _ in range(count))))
        outputs = 3 * (5 + CLASSES)
        self.heads = nn.ModuleList(
            nn.Sequential(unit(width, width // 2, 1), unit(width // 2, width), nn.Conv2d(width, outputs, 1))
            for width in widths[:2:-1]
        )

    def forward(self, x):
        x, found = self.enter(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        maps = [head(one) for head, one in zip(self.heads, found[:1:-1], strict=True)]
        return [one.unflatten(1, (3, -1)).permute(0, 1, 3, 4, 2) for one in maps]


def ious(anchors, boxes):
    """Of widths and heights alone, as if they had one corner."""
    least = torch.minimum(anchors[:, None], boxes).prod(-1)
    return least / (anchors.prod(-1)[:, None] + boxes.prod(-1) - least)


def empty_targets(grid):
    shape = (BATCH, 3, grid, grid)
    there, unlike = torch.zeros(shape, device=device), torch.ones(shape, device=device)
    return there, unlike, torch.zeros(*shape, 4, device=device), torch.zeros(*shape, CLASSES, device=device)


def build_targets(boxes, anchors, grid):
    """What a grid has to foresee: box after box."""
    there, unlike, places, classes = empty_targets(grid)
    for box in boxes:
        picture, label = int(box[0]), int(box[1])
        x, y, size = box[2] * grid, box[3] * grid, box[4:6] * SIDE
        i, j = int(x), int(y)
        overlap = ious(anchors, size[None])[:, 0]
        best = int(overlap.argmax())
        there[picture, best, j, i] = 1
        unlike[picture, best, j, i] = 0
        unlike[picture, overlap > 0.5, j, i] = 0
        places[picture, best, j, i, 0] = x - i
        places[picture, best, j, i, 1] = y - j
        places[picture, best, j, i, 2] = torch.log(size[0] / anchors[best, 0])
        places[picture, best, j, i, 3] = torch.log(size[1] / anchors[best, 1])
        classes[picture, best, j, i, label] = 1
    return there, unlike, places, classes


def build_targets_at_once(boxes, anchors, grid):
    there, unlike, places, classes = empty_targets(grid)
    picture, label = boxes[:, 0].long(), boxes[:, 1].long()
    x, y, size = boxes[:, 2] * grid, boxes[:, 3] * grid, boxes[:, 4:6] * SIDE
    i, j = x.long(), y.long()
    overlap = ious(anchors, size)
    best = overlap.argmax(0)
    there[picture, best, j, i] = 1
    near = torch.where(overlap > 0.5, 0.0, unlike[picture, :, j, i].T)
    unlike[picture, :, j, i] = near.T
    unlike[picture, best, j, i] = 0
    lengths = torch.log(size / anchors[best])
    places[picture, best, j, i] = torch.stack([x - i, y - j, lengths[:, 0], lengths[:, 1]], 1)
    classes[picture, best, j, i, label] = 1
    return there, unlike, places, classes


def loss_of(maps, boxes):
    total = 0
    for found, of in zip(maps, ANCHORS, strict=True):
        anchors, found = torch.tensor(of, device=device, dtype=torch.float32), found.float()
        build = build_targets_at_once if "targets-at-once" in FIX else build_targets
        there, unlike, places, classes = build(boxes, anchors, found.shape[2])
        seen, count = there[..., None], there.sum()
        total = total + 5 * (seen * (found[..., :2].sigmoid() - places[..., :2]).square()).sum() / count
        total = total + 5 * (seen * (found[..., 2:4] - places[..., 2:]).square()).sum() / count
        each = F.binary_cross_entropy_with_logits(found[..., 4], there, reduction="none")
        total = total + (there * each).sum() / count + 100 * (unlike * each).mean()
        each = F.binary_cross_entropy_with_logits(found[..., 5:], classes, reduction="none")
        total = total + (seen * each).sum() / count
    return total


def data():
    """Pictures with boxes, of which no two begin in one cell."""
    pictures = torch.rand(SIZE, 3, SIDE, SIDE, device=device)
    cells = torch.rand(SIZE, (SIDE // 32) ** 2, device=device).topk(BOXES, 1).indices
    corner = torch.stack([cells % (SIDE // 32), cells // (SIDE // 32)], -1)
    middle = (corner + 0.1 + 0.8 * torch.rand(SIZE, BOXES, 2, device=device)) / (SIDE // 32)
    size = 0.04 + 0.7 * torch.rand(SIZE, BOXES, 2, device=device).square()
    return pictures, torch.randint(CLASSES, (SIZE, BOXES, 1), device=device), middle, size


def main():
    pictures, labels, middle, size = data()
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    owner = torch.arange(BATCH, device=device)[:, None, None].expand(-1, BOXES, 1)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        boxes = torch.cat([owner, labels[chosen], middle[chosen], size[chosen]], -1).flatten(0, 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            maps = model(pictures[chosen])
        loss = loss_of(maps, boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
