"""Where are signs on a road? A small detector of one stage, and pictures that are made of four."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
PICTURES, RAW, SIDE, BATCH, KINDS, MOST, WIDTHS = (
    (6, 48, 64, 2, 4, 24, (8, 8, 16, 16, 16)) if TINY else (96, 384, 512, 12, 43, 48, (32, 64, 128, 256, 512))
)
STRIDE = 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Signs(Dataset):
    """Four pictures around a point, each larger or smaller, darker or lighter, some mirrored."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.pictures = rng.integers(0, 256, (PICTURES, RAW, RAW, 3), dtype=np.uint8)
        self.boxes = []
        for picture in self.pictures:
            count = rng.integers(2, MOST // 4)
            middle, size = rng.uniform(0.1, 0.9, (count, 2)), rng.uniform(0.03, 0.1, (count, 2))
            kinds = rng.integers(0, KINDS, (count, 1))
            self.boxes.append(np.concatenate([middle - size, middle + size, kinds], 1) * ([RAW] * 4 + [1]))
            for x1, y1, x2, y2, kind in self.boxes[-1].astype(int):
                picture[max(y1, 0) : y2, max(x1, 0) : x2] = (kind * 5, 255 - kind * 5, kind * 3)

    def __len__(self):
        return 1_000_000

    def resized(self, picture, factor):
        """Between pixels, as a photograph is made larger."""
        count = int(RAW * factor)
        at = (np.arange(count) + 0.5) / factor - 0.5
        first = np.clip(np.floor(at).astype(int), 0, RAW - 2)
        part = np.clip(at - first, 0, 1).astype(np.float32)
        rows = picture[first] * (1 - part)[:, None, None] + picture[first + 1] * part[:, None, None]
        return rows[:, first] * (1 - part)[None, :, None] + rows[:, first + 1] * part[None, :, None]

    def coloured(self, picture, rng):
        """Brightness, contrast and how much of a colour there is."""
        gain = (1 + rng.uniform(-1, 1, 3) * (0.4, 0.3, 0.5)).tolist()
        grey = picture.mean(2, keepdims=True)
        picture = (grey + (picture - grey) * gain[2]) * gain[0]
        return np.clip((picture - 114) * gain[1] + 114, 0, 255)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        whole = np.full((SIDE, SIDE, 3), 114, np.float32)
        found, (middle_y, middle_x) = [], (rng.uniform(0.35, 0.65, 2) * SIDE).astype(int)
        for corner in range(4):
            number, factor = rng.integers(PICTURES), rng.uniform(0.6, 1.2)
            picture, boxes = self.resized(self.pictures[number], factor), self.boxes[number].copy()
            side = len(picture)
            top = middle_y if corner // 2 else middle_y - side
            left = middle_x if corner % 2 else middle_x - side
            rows = slice(max(top, 0), min(top + side, SIDE) if corner // 2 else middle_y)
            columns = slice(max(left, 0), min(left + side, SIDE) if corner % 2 else middle_x)
            whole[rows, columns] = picture[
                rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
            ]
            boxes[:, :4] = boxes[:, :4] * factor + (left, top, left, top)
            boxes[:, 0:4:2] = boxes[:, 0:4:2].clip(columns.start, columns.stop)
            boxes[:, 1:4:2] = boxes[:, 1:4:2].clip(rows.start, rows.stop)
            found.append(boxes)
        whole, boxes = self.coloured(whole, rng), np.concatenate(found)
        if rng.random() < 0.5:
            whole = whole[:, ::-1]
            boxes[:, [0, 2]] = SIDE - boxes[:, [2, 0]]
        boxes = boxes[(boxes[:, 2:4] - boxes[:, :2]).min(1) > 2][:MOST]
        labels = np.full((MOST, 5), -1, np.float32)
        labels[: len(boxes)] = boxes
        picture = np.ascontiguousarray(whole.transpose(2, 0, 1)).astype(np.uint8)
        return torch.from_numpy(picture), torch.from_numpy(labels)


class Detector(nn.Module):
    """At each place: is something there, where does it lie, what is it?"""

    def __init__(self):
        super().__init__()
        layers, enter = [], 3
        for i, wide in enumerate(WIDTHS):
            for j in range(1 + (i > 1)):
                layers.append(nn.Conv2d(enter, wide, 3, 2 if j == 0 and i < 4 else 1, 1, bias=False))
                layers += [nn.BatchNorm2d(wide), nn.SiLU(inplace=True)]
                enter = wide
        self.body, self.last = nn.Sequential(*layers), nn.Conv2d(enter, 5 + KINDS, 1)

    def forward(self, x):
        return self.last(self.body(x))


def detector_loss(maps, labels):
    """Each sign belongs to the place where its middle is."""
    there = labels[:, :, 4] >= 0
    middle, size = (labels[:, :, :2] + labels[:, :, 2:4]) / 2, labels[:, :, 2:4] - labels[:, :, :2]
    count = maps.shape[2]
    place = (middle / STRIDE).long().clamp(0, count - 1)
    flat = (place[:, :, 1] * count + place[:, :, 0])[:, :, None]
    cells = maps.float().flatten(2).transpose(1, 2)
    own = cells.gather(1, flat.expand(-1, -1, cells.shape[2]))
    wanted = torch.zeros(cells.shape[:2], device=maps.device)
    wanted.scatter_reduce_(1, flat[:, :, 0], there.float(), "amax")
    objects = F.binary_cross_entropy_with_logits(cells[:, :, 4], wanted, reduction="sum")
    inside = (own[:, :, :2].sigmoid() - (middle / STRIDE - place)).abs().sum(2)
    large = (own[:, :, 2:4] - (size.clamp(min=1) / STRIDE).log()).abs().sum(2)
    kinds = F.cross_entropy(
        own[:, :, 5:].flatten(0, 1), labels[:, :, 4].clamp(min=0).long().flatten(), reduction="none"
    )
    each = inside + large + kinds.view_as(inside)
    return (objects + (each * there).sum()) / there.sum().clamp(min=1)


def main():
    workers = 12 if "workers" in FIX and not TINY else 2 if "workers" in FIX else 0
    loader = DataLoader(Signs(), BATCH, num_workers=workers, pin_memory=low)
    batches = iter(loader)  # workers, if there are any, begin before the device is used
    with device:
        model = Detector().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.937, nesterov=True, fused=low)
    lead, began, shown = min(STEPS // 2, 3), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        pictures, labels = next(batches)
        pictures = pictures.to(device, non_blocking=True).float() / 255
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            maps = model(pictures)
        loss = detector_loss(maps, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
