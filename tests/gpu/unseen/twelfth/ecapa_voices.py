"""Who speaks? An ECAPA-TDNN learns voices from three seconds of each."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
RATE, SECONDS, LONG, CLIPS, VOICES, BATCH, WORKERS, WIDE, MELS = (
    (2000, 1, 2, 24, 6, 4, 1, 16, 20) if TINY else (16_000, 3, 6, 800, 400, 256, 4, 512, 80)
)
FFT, HOP, SCALE, PIECES = 512, RATE // 100, 8, 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def mel_filters():
    def mel(hertz):
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)

    edges = 700 * (10 ** (np.linspace(mel(20), mel(RATE / 2 - 20), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    rise = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return torch.from_numpy(np.maximum(0, np.minimum(rise, fall)).astype(np.float32))


class Fbank(nn.Module):
    """Logarithms of energies in bands, without their mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hamming_window(RATE // 40))
        self.register_buffer("filters", mel_filters())

    def forward(self, wave):
        wave = torch.cat([wave[..., :1], wave[..., 1:] - 0.97 * wave[..., :-1]], -1)
        found = torch.stft(wave, FFT, HOP, RATE // 40, self.window, pad_mode="constant", return_complex=True)
        energy = (found.abs().square().transpose(-1, -2) @ self.filters).clamp(1e-6).log()
        return (energy - energy.mean(-2, keepdim=True)).transpose(-1, -2)


class Voices(Dataset):
    """A piece of a recording and who it is of."""

    def __init__(self):
        rng = np.random.default_rng(0)
        noise = rng.normal(0, 900, (16, LONG * RATE)).astype(np.float32)
        t = np.arange(LONG * RATE, dtype=np.float32) / RATE
        self.waves = np.empty((CLIPS, LONG * RATE), np.int16)
        for clip in range(CLIPS):
            pitch = 80 + 300 * (clip % VOICES) / VOICES
            self.waves[clip] = noise[clip % 16] + 3000 * np.sin(2 * np.pi * pitch * t)
        self.fbank = Fbank()

    def __len__(self):
        return PIECES * CLIPS  # of each recording so many in an epoch

    def __getitem__(self, index):
        clip = index % CLIPS
        first = int(torch.randint((LONG - SECONDS) * RATE, (1,)))
        wave = torch.from_numpy(self.waves[clip, first : first + SECONDS * RATE])
        if "fbank-on-device" in FIX:
            return wave, clip % VOICES
        return self.fbank(wave.float() / 32768), clip % VOICES


def unit(inputs, outputs, kernel, dilation=1):
    pad = dilation * (kernel - 1) // 2
    conv = nn.Conv1d(inputs, outputs, kernel, padding=pad, dilation=dilation)
    return nn.Sequential(conv, nn.ReLU(), nn.BatchNorm1d(outputs))


class Block(nn.Module):
    """Res2Net with a gate for channels."""

    def __init__(self, dilation):
        super().__init__()
        self.enter, self.leave = unit(WIDE, WIDE, 1), unit(WIDE, WIDE, 1)
        self.parts = nn.ModuleList(unit(WIDE // SCALE, WIDE // SCALE, 3, dilation) for _ in range(SCALE - 1))
        self.gate = nn.Sequential(nn.Conv1d(WIDE, 128, 1), nn.ReLU(), nn.Conv1d(128, WIDE, 1), nn.Sigmoid())

    def forward(self, x):
        pieces, found, y = self.enter(x).chunk(SCALE, 1), [], 0
        for part, piece in zip(self.parts, pieces, strict=False):
            y = part(piece + y)
            found.append(y)
        y = self.leave(torch.cat([*found, pieces[-1]], 1))
        return x + y * self.gate(y.mean(2, keepdim=True))


class Ecapa(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.blocks = unit(MELS, WIDE, 5), nn.ModuleList(Block(d) for d in (2, 3, 4))
        self.join, many = nn.Conv1d(3 * WIDE, 3 * WIDE // 2, 1), 3 * WIDE // 2
        self.look = nn.Sequential(nn.Conv1d(3 * many, 128, 1), nn.Tanh(), nn.Conv1d(128, many, 1))
        self.norm, self.last = nn.BatchNorm1d(2 * many), nn.Linear(2 * many, 192)
        self.voices = nn.Parameter(torch.randn(VOICES, 192))

    def forward(self, x):
        x, found = self.enter(x), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = F.relu(self.join(torch.cat(found, 1)))
        around = torch.cat([x.mean(2, keepdim=True), x.std(2, keepdim=True)], 1).expand(-1, -1, x.shape[2])
        weight = self.look(torch.cat([x, around], 1)).softmax(2)
        mean = (weight * x).sum(2)
        spread = ((weight * x.square()).sum(2) - mean.square()).clamp(1e-4).sqrt()
        return self.last(self.norm(torch.cat([mean, spread], 1)))

    def loss(self, x, who):
        """Angles to all voices, with a margin for the right one."""
        near = F.normalize(self(x).float()) @ F.normalize(self.voices).T
        return F.cross_entropy(30 * (near - 0.2 * F.one_hot(who, VOICES)), who)


def main():
    cuda = device.type == "cuda"
    loader = DataLoader(
        Voices(), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, pin_memory=cuda,
        drop_last=True,
    )  # fmt: skip
    model, fbank = Ecapa().to(device), Fbank().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    lead, began, step, shown = min(STEPS // 2, 4), 0.0, 0, 0.0
    while step < STEPS:
        for sounds, who in loader:
            if step == lead:
                if cuda:
                    torch.cuda.synchronize()
                began = time.perf_counter()
            sounds, who = sounds.to(device, non_blocking=True), who.to(device, non_blocking=True)
            if "fbank-on-device" in FIX:
                sounds = fbank(sounds.float() / 32768)
            with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                loss = model.loss(sounds, who)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = loss.item()
            step += 1
            if step == STEPS:
                break
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
