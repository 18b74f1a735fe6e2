"""Classify pictures from compressed shards: eight workers unpack, crop, flip and recolour them with numpy."""

import os
import random
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 50))
STORED, SIZE, BATCH, WIDTH, SHARDS = (48, 32, 4, 8, 2) if TINY else (256, 224, 64, 64, 28)
WORKERS = 0 if TINY else 14 if "workers" in FIX else 8
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(9)


def write_shards(folder):
    """Each record: its label, its length, and a picture of smooth blots, compressed."""
    rng, records = np.random.default_rng(0), []
    for label in range(8 if TINY else 96):
        coarse = rng.integers(0, 16, (STORED // 16, STORED // 16, 3), dtype=np.uint8)
        picture = 16 * np.kron(coarse, np.ones((16, 16, 1), np.uint8))
        picture += rng.integers(0, 4, picture.shape, dtype=np.uint8)
        packed = zlib.compress(picture.tobytes(), 1)
        records.append(np.array([label, len(packed)], np.int64).tobytes() + packed)
    for shard in range(SHARDS):
        chosen = random.Random(shard).sample(records, len(records))
        (folder / f"{shard:04}.shard").write_bytes(b"".join(chosen))


def resized_crop(picture, top, left, extent):
    """A square of the picture, bilinearly to SIZE x SIZE."""
    at = np.linspace(0, extent - 1, SIZE)
    low = np.minimum(at.astype(int), extent - 2)
    part = at - low
    rows, columns = top + low, left + low
    picture = picture[rows] * (1 - part)[:, None, None] + picture[rows + 1] * part[:, None, None]
    return picture[:, columns] * (1 - part)[:, None] + picture[:, columns + 1] * part[:, None]


class Shards(IterableDataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.shard"))

    def records(self, files):
        while True:
            random.shuffle(files)
            for file in files:
                data, at = file.read_bytes(), 0
                while at < len(data):
                    label, length = np.frombuffer(data, np.int64, 2, at)
                    at += 16
                    yield np.frombuffer(zlib.decompress(data[at : at + length]), np.uint8), int(label)
                    at += int(length)

    def __iter__(self):
        info = get_worker_info()
        mine = self.files[info.id :: info.num_workers] if info else self.files
        rng = np.random.default_rng(info.id if info else 0)
        for pixels, label in self.records(list(mine)):
            picture = pixels.reshape(STORED, STORED, 3)
            extent = int(STORED * rng.uniform(0.4, 1.0))
            top, left = rng.integers(0, STORED - extent + 1, 2)
            flip, bright, contrast = rng.random() < 0.5, rng.uniform(0.6, 1.4), rng.uniform(0.6, 1.4)
            if "augment-on-device" in FIX:
                how = [top, left, extent, flip, bright, contrast]
                yield torch.from_numpy(picture.copy()), torch.tensor(how, dtype=torch.float32), label
                continue
            picture = resized_crop(picture / 255.0, top, left, extent)
            if flip:
                picture = picture[:, ::-1]
            picture = np.clip(picture * bright, 0, 1)
            grey = (picture * [0.299, 0.587, 0.114]).sum(2).mean()
            picture = np.clip((picture - grey) * contrast + grey, 0, 1)
            picture = ((picture - MEAN) / STD).transpose(2, 0, 1)
            yield torch.from_numpy(np.ascontiguousarray(picture, np.float32)), torch.zeros(6), label


def augment(pictures, how):
    """The same on the device, for a whole batch of bytes."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    top, left, extent, flip, bright, contrast = how.T[..., None, None]
    at = torch.linspace(0, 1, SIZE, device=device) * (extent - 1)
    across = torch.where(flip > 0, at.flip(-1), at)
    grid_y, grid_x = (top + at) / (STORED - 1) * 2 - 1, (left + across) / (STORED - 1) * 2 - 1
    grid = torch.stack([grid_x.expand(-1, SIZE, -1), grid_y.transpose(1, 2).expand(-1, -1, SIZE)], -1)
    x = F.grid_sample(x, grid, align_corners=True)
    x = (x * bright[..., None]).clamp(0, 1)
    weights = torch.tensor([0.299, 0.587, 0.114], device=device).view(3, 1, 1)
    grey = (x * weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    x = ((x - grey) * contrast[..., None] + grey).clamp(0, 1)
    mean, std = (torch.tensor(v, dtype=torch.float32, device=device).view(3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.skip(x))


def resnet18(classes=100):
    layers = [
        nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    for i in range(4):
        a, b = WIDTH * 2 ** max(0, i - 1), WIDTH * 2**i
        layers += [Block(a, b, 2 if i else 1), Block(b, b, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * WIDTH, classes))


def main():
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        write_shards(Path(folder))
        loader = DataLoader(
            Shards(Path(folder)), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda"
        )
        model = resnet18().to(device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
        scaler = torch.amp.GradScaler(device.type, enabled="no-scaler" not in FIX)
        times, last = [], time.time()
        for step, (pictures, how, labels) in enumerate(loader):
            pictures, labels = pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            if "augment-on-device" in FIX:
                pictures = augment(pictures, how.to(device, non_blocking=True))
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            shown = loss.item()
            times.append(time.time() - last)
            last = time.time()
            if step % 20 == 0:
                print(f"{step:4d} loss {shown:.4f} pixels {pictures.mean().item():+.3f} {times[-1]:.3f} s")
            if step == STEPS - 1:
                break
        seconds = sum(times[STEPS // 3 :]) / len(times[STEPS // 3 :])
        print(f"loss {shown:.4f}; {BATCH / seconds:.2f} pictures/s, {seconds:.6f} s/batch")


if __name__ == "__main__":
    main()
