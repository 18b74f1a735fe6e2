"""Bayesian optimization with a Gaussian process: fit, look for the best candidate, try it, and again."""

import math
import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 14))  # trials
DIM, KNOWN, CANDIDATES, CHUNK, FITS = (3, 24, 64, 16, 2) if TINY else (20, 1200, 12_288, 512, 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


def trial(x):
    """The Ackley function, a little noisy: what would be a training with these settings."""
    z = 8 * (x - 0.35)
    value = -20 * np.exp(-0.2 * np.sqrt((z**2).mean())) - np.exp(np.cos(2 * np.pi * z).mean()) + 20 + math.e
    return -value + 0.01 * rng.standard_normal()


class MaternGP(nn.Module):
    """An exact Gaussian process: Matern 5/2 with a length for each dimension, in double precision."""

    def __init__(self):
        super().__init__()
        self.log_lengths = nn.Parameter(torch.full((DIM,), math.log(0.8), dtype=torch.double))
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.double))
        self.log_noise = nn.Parameter(torch.tensor(-4.0, dtype=torch.double))
        self.known, self.factored = None, None

    def kernel(self, a, b):
        a, b = a / self.log_lengths.exp(), b / self.log_lengths.exp()
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        far = (5 * squares.clamp(min=1e-12)).sqrt()
        return self.log_scale.exp() * (1 + far + far**2 / 3) * torch.exp(-far)

    def factor(self):
        """The Cholesky factor of what is known, and what it makes of the values."""
        x, y = self.known
        noise = self.log_noise.exp() * torch.eye(len(x), dtype=x.dtype, device=x.device)
        if "no-checks" in FIX:
            lower = torch.linalg.cholesky_ex(self.kernel(x, x) + noise).L
        else:
            lower = torch.linalg.cholesky(self.kernel(x, x) + noise)
        return lower, torch.cholesky_solve(y[:, None], lower)

    def loss(self):
        lower, weights = self.factor()
        y = self.known[1]
        fit = 0.5 * (y * weights[:, 0]).sum() + lower.diagonal().log().sum()
        return fit / len(y) + 0.5 * math.log(2 * math.pi)

    def posterior(self, x):
        lower, weights = self.factored or self.factor()
        cross = self.kernel(x, self.known[0])
        mean = (cross @ weights)[:, 0]
        solved = torch.linalg.solve_triangular(lower, cross.T, upper=False)
        variance = self.log_scale.exp() - (solved**2).sum(0)
        return mean, variance.clamp(min=1e-10).sqrt()


def expected_improvement(gp, x, best):
    mean, deviation = gp.posterior(x)
    z = (mean - best) / deviation
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return (mean - best) * torch.special.ndtr(z) + deviation * density


def fit(gp, optimizer):
    for _ in range(FITS):
        optimizer.zero_grad()
        loss = gp.loss()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def propose(gp, best_x, best_y):
    """The candidate that promises most: some anywhere, some near the best."""
    anywhere = torch.rand(CANDIDATES // 2, DIM, dtype=torch.double, device=device)
    near = best_x + 0.1 * torch.randn(CANDIDATES // 2, DIM, dtype=torch.double, device=device)
    candidates = torch.cat([anywhere, near.clamp(0, 1)])
    gp.factored = gp.factor() if "factor-once" in FIX else None
    promised = torch.cat([expected_improvement(gp, part, best_y) for part in candidates.split(CHUNK)])
    gp.factored = None
    return candidates[promised.argmax()]


x = torch.rand(KNOWN, DIM, dtype=torch.double, device=device)
y = torch.tensor([trial(row) for row in x.cpu().numpy()], dtype=torch.double, device=device)
gp, times = MaternGP().to(device), []
optimizer = torch.optim.Adam(gp.parameters(), lr=0.02)
for step in range(STEPS):
    began = time.perf_counter()
    mean, deviation = y.mean(), y.std()
    gp.known = x, (y - mean) / deviation
    loss = fit(gp, optimizer)
    place = y.argmax()
    chosen = propose(gp, x[place], gp.known[1].max())
    value = trial(chosen.cpu().numpy())
    x = torch.cat([x, chosen[None]])
    y = torch.cat([y, y.new_tensor([value])])
    times.append(time.perf_counter() - began)
    if step % 5 == 0:
        print(f"trial {len(y)}: {value:.4f}, best {y.max().item():.4f}, fit {loss:.4f}")
kept = times[min(STEPS // 2, 2) :]
print(f"best {y.max().item():.5f}, fit {loss:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per trial")
