"""Pictures from a score network by its probability flow: an adaptive Runge-Kutta method of order five."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # steps of the method
BATCH, SIDE, WIDTH = (2, 16, 8) if TINY else (64, 64, 64)
RTOL, ATOL, FIRST, LAST, LEAST, MOST = 1e-3, 1e-3, 1.0, 1e-3, 0.1, 20.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# Dormand and Prince
C = np.array([0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1])
A = [
    np.array([]),
    np.array([1 / 5]),
    np.array([3 / 40, 9 / 40]),
    np.array([44 / 45, -56 / 15, 32 / 9]),
    np.array([19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729]),
    np.array([9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656]),
]
B = np.array([35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84])
E = np.array([-71 / 57600, 0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40])


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time, self.skip = nn.Linear(4 * WIDTH, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class ScoreNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 2 * WIDTH]
        self.embed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH))
        self.enter, self.leave = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 3, 3, padding=1)
        self.downs = nn.ModuleList(Block(a, b) for a, b in zip([WIDTH, *widths], widths, strict=False))
        pairs = ((4 * WIDTH, 2 * WIDTH), (4 * WIDTH, WIDTH), (2 * WIDTH, WIDTH))
        self.ups = nn.ModuleList(Block(*pair) for pair in pairs)
        self.register_buffer("rates", torch.exp(-torch.arange(WIDTH // 2) * 9.2 / (WIDTH // 2)))

    def forward(self, x, t):
        angles = 1000 * t[:, None] * self.rates
        t = F.silu(self.embed(torch.cat([angles.sin(), angles.cos()], 1)))
        x, kept = self.enter(x), []
        for i, down in enumerate(self.downs):
            x = down(x, t)
            kept.append(x)
            if i < 2:
                x = F.avg_pool2d(x, 2)
        for i, up in enumerate(self.ups):
            x = up(torch.cat([x, kept.pop()], 1), t)
            if i < 2:
                x = F.interpolate(x, scale_factor=2)
        return self.leave(x)


def to_flattened_numpy(x):
    return x.detach().cpu().numpy().reshape((-1,))


def from_flattened_numpy(x, shape):
    return torch.from_numpy(x.reshape(shape))


class Flow:
    """What the probability flow does to pictures, as a function of a flat array."""

    def __init__(self, net):
        self.net, self.shape = net, (BATCH, 3, SIDE, SIDE)

    @torch.no_grad()
    def drift(self, x, t):
        beta = LEAST + t * (MOST - LEAST)
        deviation = (1 - np.exp(-0.5 * t**2 * (MOST - LEAST) - t * LEAST)) ** 0.5
        times = torch.full((BATCH,), t, device=device)
        return -0.5 * beta * (x - self.net(x, times) / (deviation + 1e-3))

    def __call__(self, t, x):
        if "solver-on-device" in FIX:
            return self.drift(x.view(self.shape).float(), t).reshape(-1).double()
        pictures = from_flattened_numpy(x, self.shape).to(device).float()
        return to_flattened_numpy(self.drift(pictures, t)).astype(np.float64)


class RK45:
    """Steps as long as the error allows, back in time."""

    def __init__(self, fun, t, y, until, step):
        self.fun, self.t, self.y, self.until, self.h = fun, t, y, until, step
        self.f, self.calls = fun(t, y), 1
        on_host = isinstance(y, np.ndarray)
        self.k = np.empty((7, len(y))) if on_host else torch.empty(7, len(y), device=device).double()

    def mixed(self, weights):
        """Slopes until now, with these weights."""
        k = self.k[: len(weights)]
        if isinstance(k, np.ndarray):
            return np.dot(k.T, weights)
        return torch.from_numpy(weights).to(device) @ k

    def size(self, error, new):
        """The error as a share of what is allowed, over all values."""
        if isinstance(new, np.ndarray):
            scale = ATOL + np.maximum(np.abs(self.y), np.abs(new)) * RTOL
            return float(np.linalg.norm(error / scale) / len(new) ** 0.5)
        scale = ATOL + torch.maximum(self.y.abs(), new.abs()) * RTOL
        return ((error / scale).norm() / len(new) ** 0.5).item()

    def step(self):
        h = -min(self.h, self.t - self.until)
        self.k[0] = self.f
        for i in range(1, 6):
            self.k[i] = self.fun(self.t + C[i] * h, self.y + h * self.mixed(A[i]))
        new = self.y + h * self.mixed(B)
        self.k[6] = slope = self.fun(self.t + h, new)
        self.calls += 6
        error = max(self.size(h * self.mixed(E), new), 1e-8)
        self.h = -h * min(5.0, max(0.2, 0.9 * error**-0.2))
        if error < 1:
            self.t, self.y, self.f = self.t + h, new, slope
        return error < 1


def begin(flow):
    """Noise, from which pictures come."""
    noise = torch.randn(BATCH * 3 * SIDE * SIDE, device=device).double()
    return RK45(flow, FIRST, noise if "solver-on-device" in FIX else to_flattened_numpy(noise), LAST, 0.01)


def main():
    with device:
        net = ScoreNet().eval()
    flow = Flow(net)
    solver, lead, began, taken, bright = begin(flow), min(STEPS // 2, 2), 0.0, 0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        taken += solver.step()
        if "progress-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            bright = float(abs(solver.y).mean())
        if step % 20 == 0:
            print(f"step {step}: at {solver.t:.4f}, {bright:.3f}")
        if solver.t <= LAST + 1e-6:
            solver = begin(flow)
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{taken} steps were taken, {bright:.5f}; {each:.3f} ms per step")


main()
