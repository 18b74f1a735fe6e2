"""Probabilistic forecasts of many series: an LSTM, one step of time after the other, a Gaussian at each."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution, Normal

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 250))
SERIES, HISTORY, WINDOW, COVARIATES, HIDDEN, LAYERS = (
    (20, 200, 12, 4, 16, 2) if TINY else (370, 8000, 192, 4, 64, 3)
)
BATCH = 8 if TINY else 256
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if "no-validation" in FIX:
    Distribution.set_default_validate_args(False)
rng = np.random.default_rng(0)
torch.manual_seed(0)

hours = np.arange(HISTORY)
data = (
    1.5
    + np.sin(2 * np.pi * (hours / 24 + rng.random((SERIES, 1))))
    + 0.2 * rng.standard_normal((SERIES, HISTORY))
)
covariates = np.stack(
    [np.sin(2 * np.pi * hours / 24), np.cos(2 * np.pi * hours / 24), hours % 168 / 168, hours / HISTORY], 1
)


def sample_batch():
    series = rng.integers(0, SERIES, BATCH)
    starts = rng.integers(1, HISTORY - WINDOW, BATCH)
    inputs = np.zeros((BATCH, WINDOW, 1 + COVARIATES), np.float32)
    targets = np.zeros((BATCH, WINDOW), np.float32)
    for i, (s, t) in enumerate(zip(series, starts, strict=True)):
        scale = 1 + np.abs(data[s, t : t + WINDOW]).mean()
        inputs[i, :, 0] = data[s, t - 1 : t + WINDOW - 1] / scale
        inputs[i, :, 1:] = covariates[t : t + WINDOW]
        targets[i] = data[s, t : t + WINDOW] / scale
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(series)


class DeepAR(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SERIES, 20)
        if "cudnn" in FIX:
            self.lstm = nn.LSTM(1 + COVARIATES + 20, HIDDEN, LAYERS, batch_first=True)
        else:
            self.cells = nn.ModuleList(
                nn.LSTMCell(1 + COVARIATES + 20 if not i else HIDDEN, HIDDEN) for i in range(LAYERS)
            )
        self.mu, self.sigma = nn.Linear(HIDDEN, 1), nn.Sequential(nn.Linear(HIDDEN, 1), nn.Softplus())

    def forward(self, x, state):
        for i, cell in enumerate(self.cells):
            state[i] = cell(x, state[i])
            x = state[i][0]
        return self.mu(x).squeeze(1), self.sigma(x).squeeze(1) + 1e-4, state

    def loss(self, inputs, targets, series):
        x = torch.cat([inputs, self.embedding(series)[:, None].expand(-1, WINDOW, -1)], 2)
        if "cudnn" in FIX:
            h, _ = self.lstm(x)
            return -Normal(self.mu(h)[..., 0], self.sigma(h)[..., 0] + 1e-4).log_prob(targets).mean()
        zeros = torch.zeros(len(x), HIDDEN).to(x.device)
        state, loss = [(zeros, zeros)] * LAYERS, torch.zeros(1, device=x.device)
        for t in range(WINDOW):
            mu, sigma, state = self(x[:, t], state)
            loss = loss - Normal(mu, sigma).log_prob(targets[:, t]).mean()
        return loss / WINDOW


model = DeepAR().to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True if "fused" in FIX else None)
times, losses = [], []
for step in range(STEPS):
    tick = time.time()
    inputs, targets, series = (t.to(device) for t in sample_batch())
    optimizer.zero_grad()
    loss = model.loss(inputs, targets, series)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10)
    optimizer.step()
    losses.append(loss.item())
    times.append(time.time() - tick)
    if step % 25 == 0:
        print(f"step {step}: nll {np.mean(losses[-25:]):.4f} ({times[-1]:.3f} s)")
print(f"average step: {np.mean(times[STEPS // 4 :]) * 1e3:.3f} ms")
