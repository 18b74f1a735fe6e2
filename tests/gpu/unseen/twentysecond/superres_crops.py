"""Photographs made four times as large: a network of residual blocks learns from patches of them."""

import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 90))
PHOTOS, REPEAT, HIGH, WIDE, PATCH, BATCH, CHANNELS, BLOCKS, WORKERS = (
    (3, 8, 24, 32, 4, 2, 8, 2, 1) if TINY else (24, 400, 351, 510, 48, 16, 64, 16, 6)
)
SCALE = 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low_precision = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def to_tensor(picture):
    """Rows of bytes, three for each pixel, as planes of numbers from nought to one."""
    return torch.from_numpy(picture).permute(2, 0, 1).contiguous().float().div(255)


class Photos(Dataset):
    """Photographs, decoded, and the same ones a quarter as wide and high."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.large, self.small = [], []
        for _ in range(PHOTOS):
            small = rng.integers(0, 256, (HIGH, WIDE, 3), dtype=np.uint8)
            grain = rng.integers(0, 64, (SCALE * HIGH, SCALE * WIDE, 3), dtype=np.uint8)
            self.small.append(small)
            self.large.append(small.repeat(SCALE, 0).repeat(SCALE, 1) // 4 * 3 + grain)

    def __len__(self):
        return PHOTOS * REPEAT

    def __getitem__(self, i):
        large, small = self.large[i % PHOTOS], self.small[i % PHOTOS]
        top, left = random.randrange(HIGH - PATCH + 1), random.randrange(WIDE - PATCH + 1)
        rows, columns = slice(top, top + PATCH), slice(left, left + PATCH)
        far_rows = slice(SCALE * top, SCALE * (top + PATCH))
        far_columns = slice(SCALE * left, SCALE * (left + PATCH))
        if "crop-first" in FIX:
            high, low = to_tensor(large[far_rows, far_columns]), to_tensor(small[rows, columns])
        else:
            high, low = to_tensor(large), to_tensor(small)
            high, low = high[:, far_rows, far_columns], low[:, rows, columns]
        if random.random() < 0.5:
            high, low = high.flip(2), low.flip(2)
        if random.random() < 0.5:
            high, low = high.transpose(1, 2), low.transpose(1, 2)
        return low.contiguous(), high.contiguous()


def seed_worker(worker):
    random.seed(worker)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class EDSR(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.body = nn.Sequential(
            *(Residual() for _ in range(BLOCKS)), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        )
        self.tail = nn.Sequential(
            nn.Conv2d(CHANNELS, 4 * CHANNELS, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(CHANNELS, 4 * CHANNELS, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(CHANNELS, 3, 3, padding=1),
        )

    def forward(self, x):
        x = self.head(x - 0.5)
        return self.tail(x + self.body(x)) + 0.5


def psnr(found, truth):
    return -10 * torch.log10((found.float().clamp(0, 1) - truth).square().mean())


def main():
    loader = DataLoader(
        Photos(),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )
    model = EDSR().to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=low_precision)
    lead, began, step, shown = min(STEPS // 2, 20), 0.0, 0, 0.0
    while step < STEPS:
        for low, high in loader:
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            low = low.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
            high = high.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
                found = model(low)
                loss = F.l1_loss(found, high)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "psnr-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = psnr(found.detach(), high).item()
            if step % 20 == 0:
                print(f"step {step}: {shown:.3f} dB")
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{shown:.5f} dB, loss {loss.item():.6f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
