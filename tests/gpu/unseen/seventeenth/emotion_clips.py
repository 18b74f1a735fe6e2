"""How does a person feel who speaks? A network looks at spectra of clips of three seconds."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 60))
CLIPS, BATCH, RATE, SECONDS, POINTS, HOP, MELS, WIDE, KINDS = (
    (24, 4, 1000, 1, 64, 32, 8, 4, 3) if TINY else (960, 48, 16_000, 3, 1024, 160, 128, 32, 7)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def filters():
    """Triangles, wider for higher tones."""

    def mel(f):
        return 2595 * np.log10(1 + f / 700)

    edges = 700 * (10 ** (np.linspace(mel(20), mel(RATE / 2), MELS + 2) / 2595) - 1)
    tones = np.linspace(0, RATE / 2, POINTS // 2 + 1)
    rise = (tones - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - tones) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(rise, fall)), dtype=torch.float32)


class LogMel(nn.Module):
    """Sound as a picture: time to the right, tones upward, how loud in decibels."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(POINTS))
        self.register_buffer("filters", filters())

    def forward(self, waves):
        spectrum = torch.stft(waves, POINTS, HOP, window=self.window, return_complex=True)
        power = self.filters @ spectrum.abs().pow(2)
        loud = 10 * power.clamp(min=1e-10).log10()
        mean, spread = loud.mean((-2, -1), keepdim=True), loud.std((-2, -1), keepdim=True)
        return (loud - mean) / (spread + 1e-6)


class Clips(Dataset):
    """Clips in memory, as integers; each is made a picture when it is asked for."""

    def __init__(self):
        rng, moments = np.random.default_rng(0), np.arange(RATE * SECONDS) / RATE
        self.kinds = rng.integers(0, KINDS, CLIPS)
        self.waves = np.empty((CLIPS, RATE * SECONDS), np.int16)
        for wave, kind in zip(self.waves, self.kinds, strict=True):
            tone = np.sin(6.28 * (100 + 40 * kind) * moments * (1 + 0.1 * rng.random()))
            wave[:] = 3000 * tone + 1000 * rng.standard_normal(len(moments), dtype=np.float32)
        self.features = LogMel()

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        wave = torch.from_numpy(self.waves[index]).float() / 32768
        kind = int(self.kinds[index])
        if "features-on-device" in FIX:
            return wave, kind
        return self.features(wave)[None], kind


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        layers, enter = [], 1
        for i in range(4):
            leave = WIDE << i
            for _ in range(2):
                layers += [nn.Conv2d(enter, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave)]
                layers.append(nn.ReLU(inplace=True))
                enter = leave
            layers.append(nn.AvgPool2d(2, ceil_mode=True))
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(enter, KINDS)

    def forward(self, x):
        x = self.layers(x)
        return self.head(x.amax((2, 3)) + x.mean((2, 3)))


def batches(loader):
    while True:
        yield from loader


def main():
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(
        Clips(), BATCH, shuffle=True, drop_last=True, pin_memory=low, num_workers=0, generator=generator
    )
    model, features = Network().to(device), LogMel().to(device)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=low)
    lead, began, shown, right, coming = min(STEPS // 2, 5), 0.0, 0.0, 0.0, batches(loader)
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        pictures, kinds = next(coming)
        pictures, kinds = pictures.to(device, non_blocking=True), kinds.to(device, non_blocking=True)
        if pictures.dim() == 2:
            pictures = features(pictures)[:, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            said = model(pictures).float()
        loss = F.cross_entropy(said, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, right = loss.item(), (said.argmax(1) == kinds).float().mean().item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, {right:.2f} right")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, {right:.3f} right; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
