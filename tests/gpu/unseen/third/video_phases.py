"""Recognise actions in three phases: features of all clips once, a head trained on them, a test."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
BATCHES = int(os.environ.get("STEPS", 4 if TINY else 80))
BATCH, FRAMES, SIDE, WIDTH = (2, 4, 32, 8) if TINY else (8, 16, 128, 32)
ACTIONS = 51
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN = np.array([0.432, 0.395, 0.376], np.float32)
STD = np.array([0.228, 0.221, 0.217], np.float32)


def report(text):
    print(time.strftime("[%H:%M:%S]"), text, flush=True)


class Clips:
    """Decoded clips as they lie in the cache: (frames, height, width, 3) of bytes, and an action each."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.store = rng.integers(0, 256, (4 * BATCH, FRAMES, SIDE, SIDE, 3), np.uint8)
        self.actions = torch.from_numpy(rng.integers(0, ACTIONS, BATCHES * BATCH))

    def __len__(self):
        return BATCHES

    def __getitem__(self, i):
        first = i * BATCH % len(self.store)
        return self.store[first : first + BATCH]


class Block(nn.Module):
    """A (2+1)D convolution: over space, then over time."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.space = nn.Conv3d(inputs, outputs, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(outputs, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(outputs), nn.BatchNorm3d(outputs)
        self.skip = nn.Conv3d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.space(x)))
        return F.relu(self.norm2(self.time(y)) + self.skip(x))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Conv3d(3, w, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        self.blocks = nn.Sequential(Block(w, 2 * w, 2), Block(2 * w, 4 * w, 2), Block(4 * w, 8 * w, 2))

    def forward(self, x):
        return self.blocks(F.relu(self.stem(x))).mean((2, 3, 4))


def preprocess(clips):
    """Return float pictures on the device: (batch, 3, frames, height, width), normalised."""
    if "bytes" in FIX:
        x = torch.from_numpy(clips).to(device).permute(0, 4, 1, 2, 3).float() / 255
        mean, std = (torch.from_numpy(part).to(device).view(1, 3, 1, 1, 1) for part in (MEAN, STD))
        return (x - mean) / std
    x = clips.astype(np.float32) / 255.0
    x = (x - MEAN) / STD
    x = torch.from_numpy(x).permute(0, 4, 1, 2, 3)
    if "pinned-in-loop" in FIX and device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


@torch.no_grad()
def extract(backbone, clips):
    backbone.eval()
    features, start, warm = [], 0.0, min(5, BATCHES // 3)
    for i in range(len(clips)):
        if i == warm:
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            features.append(backbone(preprocess(clips[i])).float())
        if i % 20 == 0:
            report(f"{i}/{len(clips)} batches, norm {features[-1].norm().item():.3f}")
    features = torch.cat(features).cpu()
    return features, (time.perf_counter() - start) / (BATCHES - warm)


def train_head(features, actions, epochs=5):
    head = nn.Sequential(
        nn.LayerNorm(features.shape[1]), nn.Dropout(0.5), nn.Linear(features.shape[1], ACTIONS)
    )
    head.to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    features, actions = features.to(device), actions.to(device)
    for epoch in range(epochs):
        for rows in torch.randperm(len(features), device=device).split(64):
            loss = F.cross_entropy(head(features[rows]), actions[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        report(f"epoch {epoch}: loss {loss.item():.4f}")
    return head


@torch.no_grad()
def test(head, features, actions):
    right = head.eval()(features.to(device)).argmax(1).cpu() == actions
    return right.float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    clips = Clips()
    report("phase 1: features")
    features, seconds = extract(Backbone().to(device), clips)
    report("phase 2: head")
    head = train_head(features, clips.actions)
    report(f"phase 3: top-1 {test(head, features, clips.actions):.3f}, features {features.mean():.4f}")
    report(f"extraction took {1e3 * seconds:.4f} ms per batch of {BATCH} clips")
