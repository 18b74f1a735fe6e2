"""FFJORD on a table of physics events: a continuous normalizing flow, densities by the exact trace."""

import math
import os
import time
from itertools import pairwise

import torch
from torch import nn
from torchdiffeq import odeint

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 12))
ROWS, BATCH, DIM, HIDDEN, LAYERS = (64, 16, 4, 8, 2) if TINY else (20_000, 1000, 21, 64, 3)
TOLERANCE = 1e-2 if TINY else 1e-4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def events():
    """Events that lie on a bent sheet, whitened."""
    latent = torch.randn(ROWS, DIM)
    mixed = latent @ torch.randn(DIM, DIM) / math.sqrt(DIM)
    mixed = mixed + 0.5 * torch.sin(2 * mixed.roll(1, 1))
    return ((mixed - mixed.mean(0)) / mixed.std(0)).to(device)


class ConcatSquashLinear(nn.Module):
    """A layer whose output is scaled and moved by the time."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.gate, self.bias = nn.Linear(1, outputs), nn.Linear(1, outputs, bias=False)

    def forward(self, t, x):
        t = t.view(1, 1)
        return self.layer(x) * torch.sigmoid(self.gate(t)) + self.bias(t)


class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [DIM, *[HIDDEN] * LAYERS, DIM]
        self.layers = nn.ModuleList(ConcatSquashLinear(a, b) for a, b in pairwise(sizes))

    def forward(self, t, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(t, x))
        return self.layers[-1](t, x)


def exact_trace(dx, x):
    """The trace of the Jacobian, a dimension at a time."""
    if "trace-at-once" in FIX:
        units = torch.eye(DIM, device=x.device)[:, None].expand(-1, len(x), -1)
        (rows,) = torch.autograd.grad(dx, x, units, create_graph=True, is_grads_batched=True)
        return torch.einsum("ibi->b", rows)
    total = 0.0
    for i in range(DIM):
        total = total + torch.autograd.grad(dx[:, i].sum(), x, create_graph=True)[0][:, i]
    return total


def estimated_trace(dx, x, noise):
    (product,) = torch.autograd.grad(dx, x, noise, create_graph=True)
    return (product * noise).sum(1)


class Dynamics(nn.Module):
    """The state and the change of its log density, together."""

    def __init__(self):
        super().__init__()
        self.velocity, self.evaluations, self.noise = Velocity(), 0, None

    def forward(self, t, states):
        self.evaluations += 1
        with torch.enable_grad():
            x = states[0] if states[0].requires_grad else states[0].requires_grad_(True)
            dx = self.velocity(t, x)
            trace = exact_trace(dx, x) if self.noise is None else estimated_trace(dx, x, self.noise)
        return dx, -trace


class CNF(nn.Module):
    def __init__(self):
        super().__init__()
        self.dynamics = Dynamics()
        self.register_buffer("times", torch.tensor([0.0, 1.0]))

    def log_prob(self, x):
        self.dynamics.evaluations = 0
        self.dynamics.noise = torch.randn_like(x).sign() if "hutchinson" in FIX else None
        start = x.clone(), torch.zeros(len(x), device=x.device)
        z, change = odeint(self.dynamics, start, self.times, method="dopri5", rtol=TOLERANCE, atol=TOLERANCE)
        normal = -0.5 * (z[-1] ** 2).sum(1) - 0.5 * DIM * math.log(2 * math.pi)
        return normal - change[-1]


class Average:
    """A running average, to be printed."""

    def __init__(self):
        self.value = None

    def update(self, value):
        self.value = value if self.value is None else 0.95 * self.value + 0.05 * value


data = events()
flow = CNF().to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3, weight_decay=1e-6)
loss_meter, nfe_meter, times = Average(), Average(), []
order = torch.randperm(ROWS, device=device)
for itr in range(STEPS):
    began = time.perf_counter()
    rows = order[torch.arange(itr * BATCH, (itr + 1) * BATCH, device=device) % ROWS]
    optimizer.zero_grad()
    loss = -flow.log_prob(data[rows]).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
    optimizer.step()
    loss_meter.update(loss.detach() if "loss-rarely" in FIX else loss.item())
    nfe_meter.update(flow.dynamics.evaluations)
    times.append(time.perf_counter() - began)
    if itr % 10 == 0:
        print(f"iter {itr}: loss {float(loss_meter.value):.4f}, evaluations {nfe_meter.value:.1f}")
last = loss.item()
kept = times[min(STEPS // 2, 3) :]
print(f"loss {last:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")
