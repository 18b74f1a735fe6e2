"""Which parameters fit what was observed? A flow of splines, whose layers are compiled, learns to say."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
SIZE, BATCH, PARAMETERS, OBSERVED, HIDDEN, LAYERS, BINS = (
    (32, 8, 4, 6, 16, 2, 4) if TINY else (65_536, 4096, 32, 64, 256, 12, 16)
)
LEAST, TOLERANCE = 1e-3, 1e-2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "eager"
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def edges(shares):
    """Where bins begin and end between 0 and 1, none of them too small."""
    shares = LEAST + (1 - LEAST * BINS) * F.softmax(shares, 2)
    return F.pad(shares.cumsum(2), (1, 0)).clamp(0, 1)


def spline(x, widths, heights, slopes):
    """Rational quadratic pieces from [0, 1] to [0, 1], and the logarithms of their slopes."""
    if "no-checks" not in FIX and (torch.min(x) < -TOLERANCE or torch.max(x) > 1 + TOLERANCE):
        raise ValueError("what is given lies outside of the domain")
    x = x.clamp(0, 1)
    left, low = edges(widths), edges(heights)
    slopes = LEAST + F.softplus(slopes)
    bins = ((x[..., None] >= left).sum(2, keepdim=True) - 1).clamp(0, BINS - 1)
    x0, y0 = (one.gather(2, bins)[..., 0] for one in (left, low))
    wide, high = (one.diff(dim=2).gather(2, bins)[..., 0] for one in (left, low))
    d0, d1 = slopes.gather(2, bins)[..., 0], slopes.gather(2, bins + 1)[..., 0]
    steep, at = high / wide, (x - x0) / wide
    mixed = at * (1 - at)
    below = steep + (d0 + d1 - 2 * steep) * mixed
    y = y0 + high * (steep * at.square() + d0 * mixed) / below
    slope = steep.square() * (d1 * at.square() + 2 * steep * mixed + d0 * (1 - at).square())
    return y, slope.log() - 2 * below.log()


class Coupling(nn.Module):
    """Half of the parameters say how the other half is moved."""

    def __init__(self):
        super().__init__()
        half = PARAMETERS // 2
        self.enter = nn.Linear(half + HIDDEN, HIDDEN)
        self.one, self.two = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, half * (3 * BINS + 1))

    def forward(self, x, context):
        kept, moved = x.chunk(2, 1)
        h = self.enter(torch.cat([kept, context], 1))
        h = h + self.two(F.relu(self.one(F.relu(h))))
        widths, heights, slopes = self.last(F.relu(h)).unflatten(1, (-1, 3 * BINS + 1)).split(
            [BINS, BINS, BINS + 1], 2
        )  # fmt: skip
        y, logs = spline(moved, widths, heights, slopes)
        return torch.cat([y, kept], 1), logs.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(OBSERVED, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        self.log_power = nn.Parameter(torch.zeros(PARAMETERS))
        self.layers = nn.ModuleList(Coupling() for _ in range(LAYERS))

    def forward(self, parameters, observed):
        """The log-likelihood, where nothing but the cube is known before."""
        power, context = self.log_power.exp(), self.embed(observed)
        x = parameters**power  # each is warped by a power of its own first
        likely = (self.log_power + (power - 1) * parameters.log()).sum(1)
        for layer in self.layers:
            x, logs = layer(x, context)
            likely = likely + logs
        return likely


def simulations():
    parameters = torch.rand(SIZE, PARAMETERS, device=device).clamp(min=1e-6)
    mix = torch.randn(2 * PARAMETERS, OBSERVED, device=device) / PARAMETERS**0.5
    observed = torch.cat([parameters, parameters.square()], 1) @ mix
    return parameters, observed + 0.05 * torch.randn_like(observed)


def main():
    parameters, observed = simulations()
    with device:
        flow = Flow()
    for layer in flow.layers:
        layer.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=5e-4, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        loss = -flow(parameters[chosen], observed[chosen]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
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
