"""Points of hips on X-rays, found by a U-Net whose convolutions are told where they look."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
XRAYS, BATCH, SIZE, WIDE, POINTS, WORKERS = (24, 4, 32, 8, 3, 1) if TINY else (2000, 32, 256, 32, 14, 4)
LEVELS, SIGMA = 4, 4.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class AddCoords(nn.Module):
    """Two more channels: how far right and how far down a pixel is."""

    def __init__(self, size):
        super().__init__()
        at = torch.arange(size).float() / (size - 1) * 2 - 1
        self.register_buffer("planes", torch.stack([at.expand(size, size), at[:, None].expand(size, size)]))

    def forward(self, x):
        batch, _, high, wide = x.shape
        if "coords-on-device" in FIX:
            return torch.cat([x, self.planes.expand(batch, 2, high, wide).type_as(x)], dim=1)
        xx_channel = torch.arange(wide).repeat(batch, 1, high, 1)
        yy_channel = torch.arange(high).repeat(batch, 1, wide, 1).transpose(2, 3)
        xx_channel = xx_channel.float() / (wide - 1) * 2 - 1
        yy_channel = yy_channel.float() / (high - 1) * 2 - 1
        return torch.cat([x, xx_channel.type_as(x), yy_channel.type_as(x)], dim=1)


class CoordConv(nn.Module):
    def __init__(self, enter, leave, size):
        super().__init__()
        self.add_coords, self.conv = AddCoords(size), nn.Conv2d(enter + 2, leave, 3, padding=1, bias=False)

    def forward(self, x):
        return self.conv(self.add_coords(x))


def block(enter, leave, size):
    return nn.Sequential(
        CoordConv(enter, leave, size), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
        nn.Conv2d(leave, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDE << i for i in range(LEVELS)]
        sizes = [SIZE >> i for i in range(LEVELS)]
        self.down = nn.ModuleList(
            block(enter, leave, size) for enter, leave, size in zip([1, *widths], widths, sizes, strict=False)
        )
        self.up = nn.ModuleList(
            block(widths[i + 1] + widths[i], widths[i], sizes[i]) for i in reversed(range(LEVELS - 1))
        )
        self.head = nn.Conv2d(WIDE, POINTS, 1)

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = up(torch.cat([F.interpolate(x, scale_factor=2), other], 1))
        return self.head(x)


class Hips(Dataset):
    """X-rays as bytes and where the points are; every other one is mirrored."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.points = rng.uniform(0.1 * SIZE, 0.9 * SIZE, (XRAYS, POINTS, 2)).astype(np.float32)
        self.xrays = rng.integers(0, 256, (XRAYS, SIZE, SIZE), np.uint8) // 4
        for xray, points in zip(self.xrays, self.points.astype(int), strict=True):
            for x, y in points:
                xray[y - 2 : y + 3, x - 2 : x + 3] += 150

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        xray, points = self.xrays[i % XRAYS], self.points[i % XRAYS]
        if i % 2:
            xray, points = xray[:, ::-1].copy(), points * (-1, 1) + (SIZE - 1, 0)
        return torch.from_numpy(xray), torch.from_numpy(np.asarray(points, np.float32))


def heatmaps(points):
    at = torch.arange(SIZE, device=device)
    across, down = (torch.exp(-((at - points[..., i, None]) / SIGMA).square() / 2) for i in (0, 1))
    return down[..., None] * across[..., None, :]


def main():
    loader = DataLoader(Hips(), BATCH, num_workers=WORKERS, pin_memory=low, persistent_workers=True)
    model = UNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step, (xrays, points) in enumerate(loader):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        xrays, points = xrays.to(device, non_blocking=True), points.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(xrays[:, None].float() / 255)
        loss = F.mse_loss(found.float(), heatmaps(points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.7f}; {each:.3f} ms per step")


main()
