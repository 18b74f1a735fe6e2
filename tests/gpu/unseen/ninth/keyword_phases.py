"""Spot keywords: spectrograms of all recordings, training on masked ones, tests and checkpoints between."""

import os
import random
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 400))
WARM = min(STEPS // 2, 10)
RECORDINGS, HELD, BATCH, RATE, BINS, WORDS, WIDTH, BLOCKS, EPOCH = (
    (24, 8, 6, 1600, 16, 5, 6, 2, 3) if TINY else (8192, 1024, 256, 16_000, 40, 35, 64, 6, 120)
)
MASKS, HIGHEST, LONGEST = 2, BINS // 5, 25 if not TINY else 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)


class Clock:
    """Time of training steps; tests and checkpoints are left out."""

    def __init__(self):
        self.spent, self.steps, self.began = 0.0, 0, None

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def start(self):
        self.began = self.now()

    def stop(self, steps):
        if self.began is not None:
            self.spent, self.steps, self.began = (
                self.spent + self.now() - self.began,
                self.steps + steps,
                None,
            )


def spectrograms(count, seed):
    """Setup: a second of sound for each word, as logarithms of mel bands."""
    generator = torch.Generator(device).manual_seed(seed)
    words = torch.randint(0, WORDS, (count,), generator=generator, device=device)
    size, found = (RATE // 40, []) if not TINY else (100, [])
    bands = torch.linspace(0, 1, BINS, device=device)[:, None]
    places = torch.linspace(0, 1, size // 2 + 1, device=device)[None]
    triangles = (1 - (places - bands**1.5).abs() * BINS).clamp(min=0)
    times = torch.arange(RATE, device=device) / RATE
    window = torch.hann_window(size, device=device)
    for some in words.split(1024):
        pitch = 200 + 60 * some[:, None]
        noise = torch.randn(len(some), RATE, device=device, generator=generator)
        sound = torch.sin(6.2832 * pitch * times * (1 + 0.3 * times)) + 0.3 * noise
        power = torch.stft(sound, size, RATE // 100, window=window, return_complex=True).abs().pow(2)
        found.append((triangles @ power + 1e-6).log())
    found = torch.cat(found)
    return (found - found.mean()) / found.std(), words


def spec_augment(x):
    """Some bands and some moments of each recording are hidden."""
    batch, bins, frames = x.shape
    if "masked-together" in FIX:
        hidden = torch.tensor(
            [
                [hide(bins, HIGHEST) for _ in range(MASKS)] + [hide(frames, LONGEST) for _ in range(MASKS)]
                for _ in range(batch)
            ]
        ).to(device)
        begin, end = hidden[..., 0, None], hidden[..., 1, None]
        band, moment = torch.arange(bins, device=device), torch.arange(frames, device=device)
        bands = ((band >= begin[:, :MASKS]) & (band < end[:, :MASKS])).any(1)
        moments = ((moment >= begin[:, MASKS:]) & (moment < end[:, MASKS:])).any(1)
        return x.masked_fill(bands[:, :, None] | moments[:, None, :], 0.0)
    x = x.clone()
    for i in range(batch):
        for _ in range(MASKS):
            begin, end = hide(bins, HIGHEST)
            x[i, begin:end] = 0.0
        for _ in range(MASKS):
            begin, end = hide(frames, LONGEST)
            x[i, :, begin:end] = 0.0
    return x


def hide(size, most):
    width = random.randint(1, most)
    begin = random.randint(0, size - width)
    return begin, begin + width


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, WIDTH, 3, padding=1, bias=False), nn.AvgPool2d((3, 4)))
        self.blocks, self.out = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.out(self.blocks(self.first(x[:, None])).mean((2, 3)))


@torch.no_grad()
def evaluate(model, data, words):
    model.eval()
    found = torch.cat([model(some).argmax(1) for some in data.split(BATCH)])
    model.train()
    return (found == words).float().mean().item()


data, words = spectrograms(RECORDINGS, 1)
held, held_words = spectrograms(HELD, 2)
model = Spotter().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
clock, shown, best = Clock(), 0.0, 0.0
with tempfile.TemporaryDirectory() as folder:
    for step in range(STEPS):
        if step == WARM or (step > WARM and step % EPOCH == 0):
            clock.start()
        chosen = torch.randint(0, RECORDINGS, (BATCH,)).to(device)
        loss = F.cross_entropy(model(spec_augment(data[chosen])), words[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % EPOCH == EPOCH - 1 or step == STEPS - 1:
            clock.stop(step + 1 - max(WARM, step // EPOCH * EPOCH))
            best = max(best, evaluate(model, held, held_words))
            torch.save({"model": model.state_dict(), "step": step}, Path(folder, "last.pt"))
print(f"loss {shown:.5f}, accuracy {best:.4f}; {1e3 * clock.spent / clock.steps:.3f} ms per step")
