"""Play a violin by its pitch and loudness: a bank of harmonics whose strengths a network finds (DDSP)."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
NOTES, BATCH, FRAMES, HOP, HARMONICS, WIDTH, SCALES = (
    (8, 2, 16, 32, 5, 8, (64, 32)) if TINY else (96, 24, 250, 256, 180, 256, (2048, 512, 128))
)
RATE, SAMPLES = 16_000, FRAMES * HOP
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def upsample(signal):
    """From frames to samples: each frame holds until the next."""
    signal = signal.permute(0, 2, 1)
    signal = F.interpolate(signal.contiguous(), size=signal.size(2) * HOP)
    return signal.permute(0, 2, 1)


def harmonic_synth(pitch, amplitudes):
    """Sum up the harmonics of a pitch, (batch, frames, 1), with (batch, frames, harmonics) strengths."""
    omega = torch.cumsum(2 * math.pi * upsample(pitch) / RATE, 1) % (2 * math.pi)
    omegas = omega * torch.arange(1, amplitudes.size(-1) + 1, device=omega.device)
    if "frame-products" in FIX:
        waves = torch.sin(omegas).view(-1, HOP, amplitudes.size(-1))
        return torch.bmm(waves, amplitudes.reshape(-1, amplitudes.size(-1), 1)).view(len(pitch), -1, 1)
    return (torch.sin(omegas) * upsample(amplitudes)).sum(-1, keepdim=True)


def remove_above_nyquist(amplitudes, pitch):
    heard = pitch * torch.arange(1, amplitudes.size(-1) + 1, device=pitch.device) < RATE / 2
    return amplitudes * (heard.float() + 1e-4)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Conv1d(2, WIDTH, 1)
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 5, padding=2) for _ in range(4))
        self.out = nn.Conv1d(WIDTH, HARMONICS + 1, 1)
        self.reverb = nn.Parameter(torch.zeros(RATE // 4))

    def forward(self, pitch, loudness):
        x = self.into(torch.cat([torch.log2(pitch) / 10, loudness], 2).transpose(1, 2))
        for conv in self.convs:
            x = x + F.silu(conv(x))
        x = self.out(x).transpose(1, 2)
        x = 2 * torch.sigmoid(x) ** math.log(10) + 1e-7
        total, amplitudes = x[..., :1], remove_above_nyquist(x[..., 1:], pitch)
        amplitudes = amplitudes / amplitudes.sum(-1, keepdim=True) * total
        audio = harmonic_synth(pitch, amplitudes).squeeze(-1)
        length = 2 * audio.size(1)
        spectrum = torch.fft.rfft(audio, length) * (1 + torch.fft.rfft(self.reverb, length))
        return torch.fft.irfft(spectrum, length)[:, : audio.size(1)]


def spectra(audio):
    found = []
    for size in SCALES:
        window = torch.hann_window(size, device=audio.device)
        transformed = torch.stft(audio, size, size // 4, window=window, return_complex=True)
        found.append(transformed.abs())
    return found


def notes():
    """What a violin might play: a pitch with vibrato, loudness that comes and goes, and its sound."""
    at = torch.arange(FRAMES, device=device) / 62.5
    base = 200 + 500 * torch.rand(NOTES, 1, device=device)
    pitch = (base * (1 + 0.01 * torch.sin(2 * math.pi * 5.5 * at))).unsqueeze(2)
    loudness = torch.sin(math.pi * at / at[-1]).expand(NOTES, -1).unsqueeze(2).contiguous()
    steep = 1 / torch.arange(1, 9, device=device)
    sound = [
        harmonic_synth(p[None], s[None] * steep).squeeze(-1) for p, s in zip(pitch, loudness, strict=True)
    ]
    return pitch, loudness, 0.3 * torch.cat(sound)


def main():
    cuda = device.type == "cuda"
    pitch, loudness, sound = notes()
    model = Decoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(NOTES, (BATCH,), device=device)
        with torch.no_grad():
            wanted = spectra(sound[chosen])
        loss = 0.0
        for made, true in zip(spectra(model(pitch[chosen], loudness[chosen])), wanted, strict=True):
            loss = loss + (made - true).abs().mean()
            loss = loss + (torch.log(made + 1e-4) - torch.log(true + 1e-4)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
