"""What grows in a field? A small network learns from labels, and from what a large one says and sees."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
FIELDS, BATCH, SIZE, SEEN, WIDE, DEPTHS, WORKERS = (
    (40, 4, 40, 32, 8, (1, 1), 0) if TINY else (6400, 128, 144, 128, 64, (3, 4, 6, 3), 3)
)
CROPS, WARM, ALPHA, HINT = 24, 4.0, 0.7, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Fields(Dataset):
    """Pictures from above, in memory as bytes; each time another piece of them."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.crops = rng.integers(CROPS, size=FIELDS)
        looks = rng.integers(0, 200, (CROPS, SIZE, SIZE, 3), np.uint8)
        self.pictures = looks[self.crops] + rng.integers(0, 55, (FIELDS, 1, 1, 3), np.uint8)

    def __len__(self):
        return FIELDS

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        y, x = rng.integers(SIZE - SEEN, size=2)
        piece = self.pictures[index, y : y + SEEN, x : x + SEEN]
        if rng.random() < 0.5:
            piece = piece[:, ::-1]
        return torch.from_numpy(piece.copy()).permute(2, 0, 1), int(self.crops[index])


class Bottleneck(nn.Module):
    def __init__(self, enter, wide, stride):
        super().__init__()
        leave = 4 * wide
        self.body = nn.Sequential(
            nn.Conv2d(enter, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, leave, 1, bias=False), nn.BatchNorm2d(leave),
        )  # fmt: skip
        self.short = nn.Identity()
        if stride > 1 or enter != leave:
            self.short = nn.Sequential(nn.Conv2d(enter, leave, 1, stride, bias=False), nn.BatchNorm2d(leave))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, wide, depths):
        super().__init__()
        layers = [nn.Conv2d(3, wide, 7, 2, 3, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        enter = wide
        for i, depth in enumerate(depths):
            for j in range(depth):
                layers.append(Bottleneck(enter, wide << i, 2 if i and not j else 1))
                enter = 4 * (wide << i)
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(enter, CROPS)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def batches(loader):
    while True:
        yield from loader


def main():
    loader = DataLoader(
        Fields(), BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=WORKERS > 0,
        pin_memory=low, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    feed = batches(loader)
    next(feed)
    teacher = ResNet(WIDE, DEPTHS).to(device, memory_format=torch.channels_last)
    teacher = teacher.eval().requires_grad_(False)
    student = ResNet(WIDE // 2, (1,) * len(DEPTHS)).to(device, memory_format=torch.channels_last)
    last = WIDE << (len(DEPTHS) - 1)
    hint = nn.Conv2d(2 * last, 4 * last, 1).to(device, memory_format=torch.channels_last)
    learned = [*student.parameters(), *hint.parameters()]
    optimizer = torch.optim.SGD(learned, lr=0.02, momentum=0.9, weight_decay=1e-4)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        pictures, crops = (one.to(device, non_blocking=True) for one in next(feed))
        pictures = pictures.to(memory_format=torch.channels_last).float().div(127.5).sub(1)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            with torch.no_grad():
                seen = teacher.features(pictures)
                once = "teacher-once" in FIX
                said = teacher.classifier(seen.mean((2, 3))) if once else teacher(pictures)
            features = student.features(pictures)
            logits = student.classifier(features.mean((2, 3)))
            see = hint(features)
        soft = F.kl_div(
            F.log_softmax(logits.float() / WARM, 1), F.softmax(said.float() / WARM, 1), reduction="batchmean"
        )
        loss = (1 - ALPHA) * F.cross_entropy(logits.float(), crops) + ALPHA * WARM**2 * soft
        loss = loss + HINT * F.mse_loss(see.float(), seen.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
