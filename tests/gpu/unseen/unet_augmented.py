"""Segment microscope pictures with a U-Net; each is turned, scaled, warped and recoloured on the fly."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 240))
SIZE, BATCH, WIDTH = (32, 2, 8) if TINY else (256, 16, 48)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def warp(image, rows, columns):
    """Bilinear look-up at fractional places."""
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    a, b = rows - top, columns - left
    top, left = top.clip(0, SIZE - 2), left.clip(0, SIZE - 2)
    if image.ndim == 3:
        a, b = a[..., None], b[..., None]
    return (
        image[top, left] * (1 - a) * (1 - b)
        + image[top + 1, left] * a * (1 - b)
        + image[top, left + 1] * (1 - a) * b
        + image[top + 1, left + 1] * a * b
    )


class Cells(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.pictures = rng.integers(0, 256, (80, SIZE, SIZE, 3), dtype=np.uint8)
        self.masks = (rng.random((80, SIZE, SIZE)) > 0.6).astype(np.uint8)

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        picture, mask = self.pictures[i % 80] / 255.0, self.masks[i % 80].astype(np.float64)
        angle, scale = rng.uniform(-np.pi, np.pi), rng.uniform(0.7, 1.4)
        r, c = np.meshgrid(np.arange(SIZE) - SIZE / 2, np.arange(SIZE) - SIZE / 2, indexing="ij")
        rows = scale * (np.cos(angle) * r - np.sin(angle) * c) + SIZE / 2
        columns = scale * (np.sin(angle) * r + np.cos(angle) * c) + SIZE / 2
        coarse = rng.normal(0, 6, (2, 8, 8))
        waves = np.kron(coarse, np.ones((SIZE // 8, SIZE // 8)))
        picture = warp(picture, rows + waves[0], columns + waves[1])
        mask = warp(mask, rows + waves[0], columns + waves[1]) > 0.5
        picture = (picture - 0.5) * rng.uniform(0.7, 1.3) + 0.5 + rng.uniform(-0.1, 0.1)
        picture = picture + rng.normal(0, 0.02, picture.shape)
        if rng.random() < 0.5:
            picture, mask = picture[:, ::-1], mask[:, ::-1]
        picture = np.ascontiguousarray(picture.transpose(2, 0, 1)).astype(np.float32)
        return torch.from_numpy(picture), torch.from_numpy(np.ascontiguousarray(mask)).float()


class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [WIDTH * 2**i for i in range(5)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, a // 2, 2, 2) for a in sizes[:0:-1])
        self.merge = nn.ModuleList(DoubleConv(a, a // 2) for a in sizes[:0:-1])
        self.out = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.out(x).squeeze(1)


def dice_loss(logits, target):
    p = logits.sigmoid()
    overlap = (p * target).sum((1, 2))
    return 1 - ((2 * overlap + 1) / (p.sum((1, 2)) + target.sum((1, 2)) + 1)).mean()


net = UNet().to(device)
optimizer = torch.optim.RMSprop(net.parameters(), 1e-5, momentum=0.9, foreach=True)
loader = DataLoader(Cells(), BATCH, num_workers=14 if "workers" in FIX else 4, pin_memory=True)
net.train()
seen, first = 0, None
for step, (pictures, masks) in enumerate(loader):
    pictures, masks = pictures.to(device), masks.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled="bf16" in FIX):
        logits = net(pictures)
    logits = logits.float()
    loss = F.binary_cross_entropy_with_logits(logits, masks) + dice_loss(logits, masks)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if "no-clip" not in FIX:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
    if step == STEPS // 4:
        loss.item()
        first = time.time()
loss.item()
print(f"{(STEPS - 1 - STEPS // 4) / (time.time() - first):.5f} batches per second")
