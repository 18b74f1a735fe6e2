"""Telephone speech made clear again: convolutions over waves, trained by mel spectra at five scales."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
CALLS, BATCH, SAMPLES, CHANNELS, LEVELS = (4, 2, 512, 4, 2) if TINY else (128, 8, 32768, 32, 4)
SCALES = [(64, 8), (32, 4)] if TINY else [(2048, 320), (1024, 160), (512, 80), (256, 40), (128, 20)]
RATE = 22_050
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True

mel_basis, hann_window = {}, {}


def to_mel(frequency):
    return 2595 * np.log10(1 + np.asarray(frequency) / 700)


def mel_filters(size, bands):
    """Triangles, one for each band, over the frequencies of a Fourier transform."""
    frequencies = np.linspace(0, RATE / 2, size // 2 + 1)
    edges = 700 * (10 ** (np.linspace(0, to_mel(RATE / 2), bands + 2) / 2595) - 1)
    width = np.diff(edges)
    ramps = np.subtract.outer(edges, frequencies)
    weights = np.zeros((bands, len(frequencies)), np.float32)
    for i in range(bands):
        lower, upper = -ramps[i] / width[i], ramps[i + 2] / width[i + 1]
        weights[i] = np.maximum(0, np.minimum(lower, upper))
    return weights * (2 / (edges[2:] - edges[:-2]))[:, None].astype(np.float32)


def mel_spectrum(waves, size, bands):
    key = f"{size}_{waves.device}"
    if (key if "basis-kept" in FIX else size) not in mel_basis:
        mel_basis[key] = torch.from_numpy(mel_filters(size, bands)).to(waves.device)
        hann_window[key] = torch.hann_window(size).to(waves.device)
    waves = F.pad(waves, (3 * size // 8, 3 * size // 8), mode="reflect")
    spectrum = torch.stft(waves, size, size // 4, window=hann_window[key], center=False, return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1)
    return (mel_basis[key] @ (power + 1e-9).sqrt()).clamp(min=1e-5).log()


class Residual(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, channels, 7, padding=3 * dilation, dilation=dilation)
        self.conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return x + self.conv2(F.leaky_relu(self.conv1(F.leaky_relu(x, 0.1)), 0.1))


class WaveUNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide = [CHANNELS << i for i in range(LEVELS + 1)]
        pairs = list(pairwise(wide))
        self.enter, self.leave = nn.Conv1d(1, CHANNELS, 7, padding=3), nn.Conv1d(CHANNELS, 1, 7, padding=3)
        self.down = nn.ModuleList(
            nn.Sequential(Residual(a, 1), Residual(a, 3), nn.Conv1d(a, b, 4, 2, 1)) for a, b in pairs
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose1d(b, a, 4, 2, 1), Residual(a, 1), Residual(a, 3)) for a, b in pairs
        )

    def forward(self, waves):
        x, kept = self.enter(waves[:, None]), []
        for down in self.down:
            kept.append(x)
            x = down(x)
        for up in reversed(self.up):
            x = up(x) + kept.pop()
        return waves + self.leave(x)[:, 0]


def telephone(waves):
    """What a telephone leaves of speech: every fourth sample, and those between guessed."""
    thin = F.avg_pool1d(waves[:, None], 4)
    return F.interpolate(thin, size=waves.shape[1], mode="linear")[:, 0]


def main():
    time_axis = torch.arange(SAMPLES, device=device) / RATE
    pitch = 80 + 200 * torch.rand(CALLS, 1, device=device)
    speech = sum(torch.sin(2 * torch.pi * k * pitch * time_axis) / k for k in (1, 2, 3, 7, 19)) / 3
    speech = speech + 0.02 * torch.randn_like(speech)
    calls = telephone(speech)
    with device:
        model = WaveUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.8, 0.99), fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(CALLS, (BATCH,), device=device)
        clear = speech[chosen]
        wanted = [mel_spectrum(clear, *scale) for scale in SCALES]
        found = model(calls[chosen])
        loss = F.l1_loss(found, clear)
        for scale, mel in zip(SCALES, wanted, strict=True):
            loss = loss + F.l1_loss(mel_spectrum(found, *scale), mel)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
