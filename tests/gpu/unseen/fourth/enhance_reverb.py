"""Speech enhancement with a recurrent mask; noisy, reverberant speech is made anew for every example."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))
SR, SECONDS, RIR, BATCH, HIDDEN = (1000, 1, 200, 2, 16) if TINY else (16_000, 3, 12_000, 16, 384)
N_FFT, HOP, WORKERS = (64, 32, 2) if TINY else (512, 256, 4)
SNR_RANGE, TARGET_DB, EARLY = (-5, 20), (-35, -15), 50
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def fft_convolve(signal, response):
    n = 1 << (len(signal) + len(response) - 2).bit_length()
    return np.fft.irfft(np.fft.rfft(signal, n) * np.fft.rfft(response, n), n)[: len(signal)]


def norm_amplitude(y, eps=1e-6):
    return y / (np.abs(y).max() + eps)


def tailor_db(y, target_db, eps=1e-6):
    rms = np.sqrt((y**2).mean())
    return y * 10 ** (target_db / 20) / (rms + eps)


class DynamicMixing(Dataset):
    """Clean speech, noise and room responses are in memory; they are mixed when an item is asked for."""

    def __init__(self, clean, noise, rirs, length):
        self.clean, self.noise, self.rirs, self.length = clean, noise, rirs, length

    def __len__(self):
        return self.length

    def select_noise(self, rng, target_length):
        y = np.zeros(0)
        while len(y) < target_length:
            one = self.noise[rng.integers(len(self.noise))]
            y = np.concatenate([y, one, np.zeros(SR // 10)])
        start = rng.integers(0, len(y) - target_length + 1)
        return y[start : start + target_length]

    def __getitem__(self, item):
        rng = np.random.default_rng(item)
        clean = self.clean[item % len(self.clean)]
        noise = self.select_noise(rng, len(clean))
        snr, level = rng.integers(*SNR_RANGE), rng.uniform(*TARGET_DB)
        rir, rir_noise = (self.rirs[rng.integers(len(self.rirs))] for _ in range(2))
        if "mix-on-device" in FIX:
            numbers = np.array([snr, level], np.float32)
            return tuple(one.astype(np.float32) for one in (clean, noise, rir, rir_noise, numbers))
        early = rir.copy()
        early[EARLY * SR // 1000 :] = 0
        target = fft_convolve(clean, early)
        clean = fft_convolve(clean, rir)
        noise = fft_convolve(noise, rir_noise)
        scale = np.abs(clean).max() + 1e-6
        clean, target = tailor_db(clean / scale, -25), tailor_db(target / scale, -25)
        noise = tailor_db(norm_amplitude(noise), -25)
        gain = np.sqrt((clean**2).mean() / ((noise**2).mean() * 10 ** (snr / 10)))
        noisy = clean + gain * noise
        level = 10 ** (level / 20) / (np.sqrt((noisy**2).mean()) + 1e-6)
        noisy, target = noisy * level, target * level
        if np.abs(noisy).max() > 0.99:
            loudest = np.abs(noisy).max() / 0.99
            noisy, target = noisy / loudest, target / loudest
        return noisy.astype(np.float32), target.astype(np.float32)


def mix(clean, noise, rir, rir_noise, numbers):
    """The same for a batch, where the tensors are."""

    def convolve(x, h):
        n = 1 << (x.shape[-1] + h.shape[-1] - 2).bit_length()
        return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(h, n), n)[:, : x.shape[-1]]

    def rms(x):
        return x.square().mean(-1, keepdim=True).sqrt() + 1e-6

    snr, level = numbers[:, :1], numbers[:, 1:]
    early = rir.clone()
    early[:, EARLY * SR // 1000 :] = 0
    target, clean, noise = convolve(clean, early), convolve(clean, rir), convolve(noise, rir_noise)
    target, clean, noise = (one / rms(one) * 10 ** (-25 / 20) for one in (target, clean, noise))
    noisy = clean + noise * 10 ** (-snr / 20)
    level = 10 ** (level / 20) / rms(noisy)
    level = level / (noisy * level).abs().amax(-1, keepdim=True).div(0.99).clamp(min=1)
    return noisy * level, target * level


class MaskNet(nn.Module):
    def __init__(self):
        super().__init__()
        bins = N_FFT // 2 + 1
        self.norm = nn.LayerNorm(bins)
        self.rnn = nn.LSTM(bins, HIDDEN, num_layers=2, batch_first=True)
        self.mask = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * bins))

    def forward(self, spec):
        h, _ = self.rnn(self.norm(torch.log1p(spec.abs())))
        real, imag = self.mask(h).chunk(2, -1)
        return torch.complex(torch.tanh(real), torch.tanh(imag)) * spec


def stft(y):
    window = torch.hann_window(N_FFT, device=y.device)
    return torch.stft(y, N_FFT, HOP, window=window, return_complex=True).transpose(1, 2)


rng = np.random.default_rng(0)
length = SR * SECONDS
clean = [np.convolve(rng.standard_normal(length), np.ones(8) / 8, "same") for _ in range(4 if TINY else 64)]
noise = [rng.standard_normal(int(length * rng.uniform(0.3, 1.5))) for _ in range(4 if TINY else 32)]
decay = np.exp(-np.arange(RIR) / (RIR / 6))
rirs = [rng.standard_normal(RIR) * decay for _ in range(4 if TINY else 32)]
loader = DataLoader(
    DynamicMixing(clean, noise, rirs, STEPS * BATCH),
    batch_size=BATCH,
    shuffle=True,
    num_workers=3 * WORKERS if "more-workers" in FIX else WORKERS,
    pin_memory=torch.cuda.is_available(),
    drop_last=True,
)
model = MaskNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
begun, loss_total = time.time(), 0.0
for i, batch in enumerate(loader, 1):
    batch = [one.to(device, non_blocking=True) for one in batch]
    noisy, target = mix(*batch) if "mix-on-device" in FIX else batch
    optimizer.zero_grad()
    estimate, wanted = model(stft(noisy)), stft(target)
    loss = (torch.view_as_real(estimate) - torch.view_as_real(wanted)).square().mean()
    loss = loss + (estimate.abs() - wanted.abs()).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10)
    optimizer.step()
    loss_total += loss.item()
    if i == max(1, STEPS // 6):  # the workers have started
        begun, first = time.time(), i
    if i % 20 == 0:
        print(f"[{i}/{len(loader)}] loss {loss_total / i:.5f}")
print(f"loss {loss_total / i:.5f}; {1e3 * (time.time() - begun) / (i - first):.3f} ms per batch")
