"""Separate two speakers with a Conv-TasNet: encoder, 24 dilated blocks, masks, SI-SNR of the better order."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
M, SECONDS = (2, 0.1) if TINY else (8, 4.0)  # mixtures in a batch, each of so many seconds at 8 kHz
N, L, B, H, P, X, R, C = (32, 16, 16, 32, 3, 3, 2, 2) if TINY else (512, 16, 128, 512, 3, 8, 3, 2)
EPS = 1e-8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(123)


def normalised(y, gamma, beta):
    """Normalise over channels and time together: gLN."""
    mean = y.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
    var = (y - mean).pow(2).mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
    return gamma * (y - mean) / torch.pow(var + EPS, 0.5) + beta


if "compiled-norm" in FIX:
    normalised = torch.compile(normalised, backend="aot_eager" if TINY else "inductor")


class GlobalLayerNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, y):  # (batch, channels, time)
        if "group-norm" in FIX:
            return F.group_norm(y, 1, self.gamma.flatten(), self.beta.flatten(), EPS)
        return normalised(y, self.gamma, self.beta)


class TemporalBlock(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        padding = (P - 1) * dilation // 2
        self.net = nn.Sequential(
            nn.Conv1d(B, H, 1, bias=False),
            nn.PReLU(),
            GlobalLayerNorm(H),
            nn.Conv1d(H, H, P, padding=padding, dilation=dilation, groups=H, bias=False),
            nn.PReLU(),
            GlobalLayerNorm(H),
            nn.Conv1d(H, B, 1, bias=False),
        )

    def forward(self, x):
        return x + self.net(x)


class ConvTasNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv1d(1, N, L, stride=L // 2, bias=False)
        self.norm, self.bottleneck = GlobalLayerNorm(N), nn.Conv1d(N, B, 1, bias=False)
        self.repeats = nn.Sequential(
            *[nn.Sequential(*[TemporalBlock(2**x) for x in range(X)]) for _ in range(R)]
        )
        self.masks = nn.Conv1d(B, C * N, 1, bias=False)
        self.decoder = nn.ConvTranspose1d(N, 1, L, stride=L // 2, bias=False)

    def forward(self, mixture):
        w = F.relu(self.encoder(mixture.unsqueeze(1)))
        masks = F.relu(self.masks(self.repeats(self.bottleneck(self.norm(w)))))
        sources = w.unsqueeze(1) * masks.view(len(w), C, N, -1)
        estimate = self.decoder(sources.flatten(0, 1)).view(len(w), C, -1)
        return F.pad(estimate, (0, mixture.shape[-1] - estimate.shape[-1]))


def si_snr(estimate, target):
    """Return the scale-invariant signal-to-noise ratio in decibel, over the last dimension."""
    target = target - target.mean(-1, keepdim=True)
    estimate = estimate - estimate.mean(-1, keepdim=True)
    projection = (estimate * target).sum(-1, keepdim=True) * target
    projection = projection / (target.pow(2).sum(-1, keepdim=True) + EPS)
    noise = estimate - projection
    return 10 * torch.log10(projection.pow(2).sum(-1) / (noise.pow(2).sum(-1) + EPS) + EPS)


def pit_loss(estimate, sources):
    pairs = si_snr(estimate.unsqueeze(1), sources.unsqueeze(2))  # (batch, source, estimate)
    straight = pairs[:, 0, 0] + pairs[:, 1, 1]
    crossed = pairs[:, 0, 1] + pairs[:, 1, 0]
    return -torch.maximum(straight, crossed).mean() / C


def utterances(count):
    """Draw voiced-like sounds: harmonics of a wandering pitch with some noise."""
    t = torch.arange(int(8000 * SECONDS), device=device) / 8000
    pitch = 80 + 200 * torch.rand(count, C, 1, device=device)
    phase = 2 * torch.pi * pitch * (t + 0.02 * torch.sin(5 * t))
    return sum(torch.sin(k * phase) / k for k in range(1, 6)) + 0.05 * torch.randn_like(phase)


model = ConvTasNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = [utterances(M) for _ in range(8)]
warm, total = STEPS // 5, 0.0
for i in range(STEPS):
    if i == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.time()
    sources = data[i % len(data)]
    loss = pit_loss(model(sources.sum(1)), sources)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    total += loss.item()
    if i % 20 == 0:
        print(f"Iter {i + 1} | Average Loss {total / (i + 1):.3f} | Current Loss {loss.item():.3f}")
spent = time.time() - start
print(f"Average Loss {total / STEPS:.3f} | {1e3 * spent / (STEPS - warm):.2f} ms/batch")
