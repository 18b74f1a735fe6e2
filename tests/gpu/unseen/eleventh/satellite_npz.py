"""What grows where? Tiles of ten bands from a satellite, in files as they were downloaded."""

import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 60))
FILES, TILES, BANDS, SIDE, BATCH, WORKERS, WIDTH, CLASSES = (
    (3, 8, 3, 16, 4, 1, 8, 4) if TINY else (24, 64, 10, 64, 64, 4, 64, 12)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def download(folder):
    """Stands in for a download: files of tiles with their labels."""
    rng = np.random.default_rng(0)
    levels = rng.integers(500, 3000, (CLASSES, BANDS, 1, 1))
    noise = rng.integers(0, 500, (TILES, BANDS, SIDE, SIDE))
    for number in range(FILES):
        labels = rng.integers(0, CLASSES, TILES)
        bands = (levels[labels] + np.roll(noise, number, 0)).astype(np.uint16)
        np.savez(folder / f"scene-{number:03d}.npz", bands=bands, labels=labels)


class Tiles(Dataset):
    """A tile of a file, turned and mirrored."""

    def __init__(self, folder):
        self.files = sorted(folder.glob("*.npz"))
        self.mean, self.scale = np.full((BANDS, 1, 1), 2000, np.float32), np.float32(800)
        self.opened = {}
        if "unpacked-once" in FIX:
            for file in self.files:
                with np.load(file) as scene:
                    np.save(file.with_suffix(".bands.npy"), scene["bands"])
                    np.save(file.with_suffix(".labels.npy"), scene["labels"])

    def __len__(self):
        return len(self.files) * TILES

    def tile(self, file, place):
        if "unpacked-once" in FIX:
            if file not in self.opened:
                parts = (file.with_suffix(f".{what}.npy") for what in ("bands", "labels"))
                self.opened[file] = [np.load(part, mmap_mode="r") for part in parts]
            bands, labels = self.opened[file]
            return bands[place], int(labels[place])
        scene = np.load(file)
        return scene["bands"][place], int(scene["labels"][place])

    def __getitem__(self, index):
        bands, label = self.tile(self.files[index // TILES], index % TILES)
        x = (bands.astype(np.float32) - self.mean) / self.scale
        x = np.rot90(x, int(torch.randint(4, (1,))), (1, 2))
        if torch.rand(1) < 0.5:
            x = x[:, :, ::-1]
        return torch.from_numpy(np.ascontiguousarray(x)), label


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH, WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.first = nn.Conv2d(BANDS, WIDTH, 3, 1, 1)
        self.blocks = nn.Sequential(*(Block(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)))
        self.out = nn.Linear(widths[-1], CLASSES)

    def forward(self, x):
        return self.out(self.blocks(self.first(x)).mean((2, 3)))


def main():
    cuda = device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        download(Path(folder))
        loader = DataLoader(
            Tiles(Path(folder)),
            BATCH,
            shuffle=True,
            num_workers=WORKERS,
            persistent_workers=True,
            pin_memory=cuda,
            drop_last=True,
        )
        model = Net().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
        lead, began, step, shown, right = min(STEPS // 2, 4), 0.0, 0, 0.0, 0.0
        while step < STEPS:
            for tiles, labels in loader:
                if step == lead:
                    if cuda:
                        torch.cuda.synchronize()
                    began = time.perf_counter()
                tiles, labels = tiles.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                    logits = model(tiles)
                loss = F.cross_entropy(logits.float(), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                    shown = loss.item()
                    right = (logits.argmax(1) == labels).float().mean().item()
                step += 1
                if step == STEPS:
                    break
            print(f"after {step} steps: loss {shown:.4f}, right {right:.3f}")
        if cuda:
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
