"""Follow people through a video: a thread reads frames, the tracker compares how people look and move."""

import os
import queue
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 300))  # frames
PEOPLE, HEIGHT, WIDE, WIDTHS = (3, 96, 160, (8, 16)) if TINY else (28, 720, 1280, (64, 128, 256, 512))
CROP, FARTHEST, KEPT = (128, 64), 0.4, 30
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short = nn.Identity()
        if stride > 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return F.relu(self.main(x) + self.short(x))


class ReID(nn.Module):
    """How a person looks, as a vector of length one."""

    def __init__(self):
        super().__init__()
        first = WIDTHS[0]
        layers = [nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(2)]
        for i, (inner, outer) in enumerate(zip((first, *WIDTHS[:-1]), WIDTHS, strict=True)):
            layers += [Block(inner, outer, 2 if i else 1), Block(outer, outer, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return F.normalize(self.layers(x).mean((2, 3)))


class Extractor:
    def __init__(self):
        self.net = ReID().to(device).eval()
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1)

    def crop(self, frame, box):
        left, top, right, bottom = box
        part = frame[:, top:bottom, left:right].float() / 255
        return F.interpolate(((part - self.mean) / self.std)[None], size=CROP, mode="bilinear")

    @torch.inference_mode()
    def __call__(self, frame, boxes):
        crops = [self.crop(frame, box) for box in boxes.tolist()]
        if "crops-together" in FIX:
            return self.net(torch.cat(crops)).cpu().numpy()
        return np.concatenate([self.net(one).cpu().numpy() for one in crops])


class Tracker:
    """Tracks with the looks they had lately, and a constant velocity."""

    def __init__(self):
        self.boxes, self.speeds, self.looks, self.names = [], [], [], []

    def update(self, boxes, features):
        taken, named = set(), np.full(len(boxes), -1)
        if self.boxes:
            looks = np.stack([1 - (features @ np.stack(kept).T).max(1) for kept in self.looks])
            there = np.stack(self.boxes) + np.stack(self.speeds)
            moves = np.abs(there[:, None] - boxes[None]).max(2) / HEIGHT
            cost = np.where(moves < 0.1, 0.5 * looks + moves, np.inf)
            for flat in np.argsort(cost, axis=None):
                track, box = divmod(int(flat), len(boxes))
                if not np.isfinite(cost[track, box]) or cost[track, box] > FARTHEST:
                    break
                if track in taken or named[box] >= 0:
                    continue
                taken.add(track)
                named[box] = track
        for box, track in enumerate(named.tolist()):
            if track < 0:
                self.boxes.append(boxes[box].astype(float))
                self.speeds.append(np.zeros(4))
                self.looks.append([features[box]])
                self.names.append(len(self.names))
            else:
                moved = boxes[box] - self.boxes[track]
                self.speeds[track] = 0.8 * self.speeds[track] + 0.2 * moved
                self.boxes[track] = boxes[box].astype(float)
                self.looks[track] = [*self.looks[track][1 - KEPT :], features[box]]
        return len(taken)


def read(frames):
    """The video with what a detector found in it: people of one colour each, who walk back and forth."""
    rng = np.random.default_rng(0)
    ground = rng.integers(90, 120, (HEIGHT, WIDE, 3), dtype=np.uint8)
    colours = rng.integers(0, 256, (PEOPLE, 3), dtype=np.uint8)
    tall = rng.integers(HEIGHT // 8, HEIGHT // 4, PEOPLE)
    size = np.stack([tall // 2, tall], 1)
    place = rng.random((PEOPLE, 2)) * ((WIDE, HEIGHT) - size)
    speed = rng.normal(0, 2, (PEOPLE, 2))
    for _ in range(STEPS):
        frame = ground.copy()
        place = place + speed
        speed = np.where((place < 0) | (place > (WIDE, HEIGHT) - size), -speed, speed)
        place = place.clip(0, (WIDE, HEIGHT) - size)
        boxes = np.concatenate([place, place + size], 1).astype(np.int64)
        for (left, top, right, bottom), colour in zip(boxes, colours, strict=True):
            frame[top:bottom, left:right] = colour
        pixels = torch.from_numpy(frame)
        if "pinned" in FIX and device.type == "cuda":
            pixels = pixels.pin_memory()
        frames.put((pixels, boxes))
    frames.put(None)


frames = queue.Queue(maxsize=4)
reader = threading.Thread(target=read, args=(frames,), daemon=True)
extract, tracker, times, found = Extractor(), Tracker(), [], 0
reader.start()
last = time.perf_counter()
while (one := frames.get()) is not None:
    pixels, boxes = one
    frame = pixels.to(device, non_blocking=True).permute(2, 0, 1)
    found += tracker.update(boxes, extract(frame, boxes))
    now = time.perf_counter()
    times.append(now - last)
    last = now
kept = times[min(STEPS // 2, 5) :]
print(f"{len(tracker.names)} tracks, {found / STEPS:.2f} people found again in a frame")
print(f"{1e3 * sum(kept) / len(kept):.3f} ms per frame")
