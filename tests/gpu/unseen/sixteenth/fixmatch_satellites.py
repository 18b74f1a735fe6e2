"""Land use with 256 labels: FixMatch, which learns from what it is sure of in pictures without labels."""

import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
LABELLED, OTHERS, BATCH, RATIO, SIDE, WIDE, DEEP, KINDS, WORKERS = (
    (8, 48, 4, 2, 16, 4, 1, 3, 1) if TINY else (256, 60_000, 64, 7, 32, 32, 4, 10, 4)
)
SURE, SHIFT = 0.95, SIDE // 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Tiles(Dataset):
    def __init__(self, pictures, kinds=None):
        self.pictures, self.kinds = pictures, kinds

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = torch.from_numpy(self.pictures[index])
        return picture if self.kinds is None else (picture, int(self.kinds[index]))


def endless(loader):
    """A loader that begins again where it ends."""
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        yield batch


class Block(nn.Module):
    def __init__(self, wide, out, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(wide, out, 1, stride, bias=False) if wide != out else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.leaky_relu(self.norm1(x), 0.1))
        return self.shortcut(x) + self.conv2(F.leaky_relu(self.norm2(y), 0.1))


class WideResNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, wide = [nn.Conv2d(3, WIDE, 3, 1, 1, bias=False)], WIDE
        for i in range(3):
            for j in range(DEEP):
                layers.append(Block(wide, WIDE << i, 2 if i and not j else 1))
                wide = WIDE << i
        self.layers, self.norm = nn.Sequential(*layers), nn.BatchNorm2d(wide)
        self.last = nn.Linear(wide, KINDS)

    def forward(self, x):
        return self.last(F.leaky_relu(self.norm(self.layers(x)), 0.1).mean((2, 3)))


class Views:
    """Weak: turned around and shifted. Strong: also another contrast, and a square cut out."""

    def __init__(self):
        self.generator = torch.Generator(device).manual_seed(0)

    def drawn(self, low, high, count):
        return torch.randint(low, high, (count,), device=device, generator=self.generator)

    def weak(self, pictures):
        x = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        count, at = len(x), torch.arange(SIDE, device=device)
        rows = (at + self.drawn(-SHIFT, SHIFT + 1, count)[:, None]).clamp(0, SIDE - 1)
        columns = (at + self.drawn(-SHIFT, SHIFT + 1, count)[:, None]).clamp(0, SIDE - 1)
        columns = torch.where(self.drawn(0, 2, count)[:, None] > 0, columns, SIDE - 1 - columns)
        first = torch.arange(count, device=device)[:, None, None]
        x = x.permute(0, 2, 3, 1)[first, rows[:, :, None], columns[:, None]]
        return x.permute(0, 3, 1, 2)

    def strong(self, pictures):
        x = self.weak(pictures)
        count, at = len(x), torch.arange(SIDE, device=device)
        factor = torch.rand(count, 1, 1, 1, device=device, generator=self.generator) * 1.8 + 0.1
        top, left = (self.drawn(0, SIDE // 2, count)[:, None] for _ in range(2))
        rows, columns = ((at >= begin) & (at < begin + SIDE // 2) for begin in (top, left))
        cut = (rows[:, :, None] & columns[:, None])[:, None]
        return ((x - x.mean((1, 2, 3), keepdim=True)) * factor).masked_fill(cut, 0.0)


def loader(tiles, batch, seed):
    order = RandomSampler(tiles, generator=torch.Generator().manual_seed(seed))
    return DataLoader(
        tiles, batch, sampler=order, num_workers=WORKERS, drop_last=True, pin_memory=low,
        persistent_workers="workers-stay" in FIX,
    )  # fmt: skip


def tiles():
    """Fields, woods and water have colours of their own, with noise."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (KINDS, 1, 1, 3))

    def drawn(count):
        kinds = rng.integers(KINDS, size=count)
        noise = rng.integers(-40, 40, (count, SIDE, SIDE, 3), dtype=np.int16)
        noise += colours[kinds].astype(np.int16)
        return noise.clip(0, 255).astype(np.uint8), kinds

    return Tiles(*drawn(LABELLED)), Tiles(drawn(OTHERS)[0])


def main():
    some, others = tiles()
    known, unknown = endless(loader(some, BATCH, 1)), endless(loader(others, BATCH * RATIO, 2))
    with device:
        model, views = WideResNet().to(memory_format=torch.channels_last), Views()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=low
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: math.cos(7 * math.pi * n / (16 * 2**15))
    )
    lead, began, shown, used = min(STEPS // 2, 8), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        pictures, kinds = next(known)
        pictures, kinds = pictures.to(device, non_blocking=True), kinds.to(device, non_blocking=True)
        more = next(unknown).to(device, non_blocking=True)
        x = torch.cat([views.weak(pictures), views.weak(more), views.strong(more)])
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(x.contiguous(memory_format=torch.channels_last))
        right, weak, strong = logits.float().split([BATCH, BATCH * RATIO, BATCH * RATIO])
        chance, guess = weak.detach().softmax(1).max(1)
        sure = (chance >= SURE).float()
        loss = F.cross_entropy(right, kinds)
        loss = loss + (F.cross_entropy(strong, guess, reduction="none") * sure).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, used = loss.item(), sure.mean().item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.4f}, used {used:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, used {used:.4f}; {each:.3f} ms per step")


main()
