"""Where are eyes, noses and chins? A network learns maps of ninety-eight places in a face."""

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
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
FACES, REPEAT, SIZE, POINTS, BATCH, CHANNELS, DEPTH, WORKERS = (
    (8, 4, 32, 5, 4, 8, 2, 1) if TINY else (128, 100, 256, 98, 32, 128, 4, 2)
)
MAP, SIGMA = SIZE // 4, 1.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def gaussian(point):
    """A map that is one at a point and falls off around it."""
    x = np.arange(0, MAP, 1, float)
    y = x[:, np.newaxis]
    return np.exp(-((x - point[0]) ** 2 + (y - point[1]) ** 2) / (2 * SIGMA**2))


class Faces(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.points = rng.uniform(0.15, 0.85, (FACES, POINTS, 2)).astype(np.float32) * MAP
        self.faces = rng.integers(0, 128, (FACES, SIZE, SIZE, 3), dtype=np.uint8)
        for face, points in zip(self.faces, self.points, strict=True):
            for x, y in (points * SIZE / MAP).astype(int):
                face[y - 2 : y + 2, x - 2 : x + 2] = 255

    def __len__(self):
        return FACES * REPEAT

    def __getitem__(self, i):
        face, points = self.faces[i % FACES], self.points[i % FACES].copy()
        right, down = random.randint(-4, 4), random.randint(-4, 4)
        face = np.roll(face, (4 * down, 4 * right), (0, 1))
        points += np.array([right, down], dtype=np.float32)
        if random.random() < 0.5:
            face, points[:, 0] = face[:, ::-1], MAP - 1 - points[:, 0]
        face = torch.from_numpy(np.ascontiguousarray(face.transpose(2, 0, 1)))
        if "maps-on-device" in FIX:
            return face, torch.from_numpy(points), torch.empty(0)
        maps = np.zeros((POINTS, MAP, MAP), dtype=np.float32)
        for place, point in enumerate(points):
            maps[place] = gaussian(point)
        return face, torch.from_numpy(points), torch.from_numpy(maps)


def seed_worker(worker):
    random.seed(worker)


def gaussians(points):
    """The maps of all points of all faces."""
    axis = torch.arange(MAP, device=points.device, dtype=points.dtype)
    x, y = ((axis - one[..., None]).square() for one in points.unbind(2))
    return torch.exp(-(x[:, :, None, :] + y[:, :, :, None]) / (2 * SIGMA**2))


class Residual(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride) if enter != leave or stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Hourglass(nn.Module):
    """Down to small maps and up again, with a way around at each size."""

    def __init__(self, depth):
        super().__init__()
        self.around, self.down = Residual(CHANNELS, CHANNELS), Residual(CHANNELS, CHANNELS, 2)
        self.inner = Hourglass(depth - 1) if depth > 1 else Residual(CHANNELS, CHANNELS)
        self.up = Residual(CHANNELS, CHANNELS)

    def forward(self, x):
        return self.around(x) + F.interpolate(self.up(self.inner(self.down(x))), scale_factor=2)


class Landmarks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Residual(3, CHANNELS // 2, 2), Residual(CHANNELS // 2, CHANNELS, 2))
        self.hourglass, self.head = Hourglass(DEPTH), nn.Conv2d(CHANNELS, POINTS, 1)

    def forward(self, x):
        return self.head(self.hourglass(self.stem(x)))


def distance(found, points):
    """How far off points are, on average, in widths of a face."""
    best = found.flatten(2).argmax(2)
    places = torch.stack([best % MAP, best // MAP], 2)
    return (places - points).norm(dim=2).mean() / MAP


def main():
    loader = DataLoader(
        Faces(),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )
    model = Landmarks().to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=low)
    lead, began, step, shown = min(STEPS // 2, 20), 0.0, 0, 0.0
    while step < STEPS:
        for faces, points, maps in loader:
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            faces, points = (one.to(device, non_blocking=True) for one in (faces, points))
            maps = gaussians(points) if "maps-on-device" in FIX else maps.to(device, non_blocking=True)
            x = faces.contiguous(memory_format=torch.channels_last).float().div(127.5).sub(1)
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                found = model(x)
            loss = F.mse_loss(found.float(), maps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "distance-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = distance(found.detach(), points).item()
            if step % 20 == 0:
                print(f"step {step}: {shown:.4f} of a face off")
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{shown:.5f} of a face off, loss {loss.item():.7f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
