"""A dry guitar sounds as in that hall: a filter, a gain and an impulse response are learnt."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
RATE = 800 if TINY else 48_000
CLIPS, BATCH, SECONDS, TAIL, TONE, WINDOW = (8, 2, 2, 1, 31, 64) if TINY else (256, 64, 2, 1, 511, 2048)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def fast_length(count):
    """The next number without other factors than 2, 3 and 5."""
    while True:
        rest = count
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return count
        count += 1


def convolve(x, response):
    """The full convolution, as a product of spectra."""
    count = x.shape[-1] + response.shape[-1] - 1
    size = fast_length(count) if "fast-length" in FIX else count
    spectrum = torch.fft.rfft(x, n=size) * torch.fft.rfft(response, n=size)
    return torch.fft.irfft(spectrum, n=size)[..., :count]


class Room(nn.Module):
    """A late tail: noise that dies away, and what is learnt of it."""

    def __init__(self):
        super().__init__()
        t = torch.arange(TAIL * RATE) / RATE
        self.taps = nn.Parameter(0.02 * torch.randn(len(t)) * torch.exp(-6 * t))
        self.wet = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return x + self.wet * convolve(x, self.taps)[..., : x.shape[-1]]


class Amplifier(nn.Module):
    """Tone, then a soft edge."""

    def __init__(self):
        super().__init__()
        taps = torch.zeros(TONE)
        taps[0] = 1.0
        self.taps, self.drive = nn.Parameter(taps), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        x = convolve(x, self.taps)[..., : x.shape[-1]]
        return torch.tanh(self.drive * x) / self.drive


def spectral_loss(a, b):
    window = torch.hann_window(WINDOW, device=a.device)
    a, b = (
        torch.stft(one, WINDOW, WINDOW // 2, window=window, return_complex=True).abs().clamp(1e-5)
        for one in (a, b)
    )
    return (a.log() - b.log()).abs().mean() + (a - b).norm() / b.norm()


def recordings():
    """Plucked strings, and how they sounded in the hall."""
    t = torch.arange(SECONDS * RATE, device=device) / RATE
    pitch = 80 + 400 * torch.rand(CLIPS, 1, device=device)
    dry = torch.zeros(CLIPS, len(t), device=device)
    for i in range(1, 6):
        dry += torch.sin(2 * torch.pi * i * pitch * t) * torch.exp(-3 * i * t) / (4 * i)
    tail = torch.arange(TAIL * RATE, device=device) / RATE
    hall = 0.03 * torch.randn(len(tail), device=device) * torch.exp(-8 * tail)
    size = 2 * len(t)
    wet = torch.fft.irfft(torch.fft.rfft(dry, n=size) * torch.fft.rfft(hall, n=size), n=size)
    return dry, torch.tanh(2 * dry) / 2 + wet[:, : len(t)]


def main():
    dry, wet = recordings()
    model = nn.Sequential(Amplifier(), Room()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(CLIPS, (BATCH,), device=device)
        found, wanted = model(dry[chosen]), wet[chosen]
        loss = F.l1_loss(found, wanted) + 0.1 * spectral_loss(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}, wet {model[1].wet.item():.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
