"""A foundation model of time series: patches of what was seen foretell what comes; it is compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
SERIES, BATCH, PATCH, PATCHES, AHEAD, WIDE, INNER, HEAD, LAYERS = (
    (16, 4, 4, 4, 8, 32, 48, 16, 1) if TINY else (8192, 256, 32, 48, 128, 1024, 2048, 64, 8)
)
QUANTILES = 9
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend, dtype = ("inductor", torch.bfloat16) if device.type == "cuda" else ("eager", torch.float32)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.scale).to(x.dtype)


class Residual(nn.Module):
    """Two layers, and one that leads around them."""

    def __init__(self, inputs, inner, outputs):
        super().__init__()
        self.hidden, self.output = nn.Linear(inputs, inner), nn.Linear(inner, outputs)
        self.around = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.output(F.silu(self.hidden(x))) + self.around(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = RMSNorm(WIDE), RMSNorm(WIDE)
        self.before_up, self.after_down = RMSNorm(WIDE), RMSNorm(WIDE)
        self.query, self.key = RMSNorm(HEAD), RMSNorm(HEAD)
        self.per_dim = nn.Parameter(torch.zeros(HEAD))
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate, self.up = (nn.Linear(WIDE, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def rotate(self, x, angles):
        a, b = x.float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def forward(self, x, angles):
        q, k, v = self.qkv(self.before(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        q, k = self.query(self.rotate(q, angles)), self.key(self.rotate(k, angles))
        q = (q * (1.442695 * F.softplus(self.per_dim))).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.after(self.out(y.transpose(1, 2).flatten(2)))
        y = self.before_up(x)
        return x + self.after_down(self.down(F.silu(self.gate(y)) * self.up(y)))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = Residual(2 * PATCH, WIDE, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.leave = Residual(WIDE, WIDE, AHEAD * QUANTILES)
        rates = 10_000 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        self.register_buffer("angles", torch.outer(torch.arange(PATCHES), rates))

    def prepare(self, compiled):
        """What has to be done before it is used."""
        self.to(device)
        if "really-compiled" in FIX:
            for block in self.blocks:
                block.compile(backend=backend, dynamic=False)
        elif compiled:
            self = torch.compile(self, backend=backend, dynamic=False)

    def normalized(self, patches):
        """By mean and deviation of all that was seen until then."""
        count = PATCH * torch.arange(1, PATCHES + 1, device=patches.device)
        mean = patches.sum(2).cumsum(1) / count
        squares = patches.square().sum(2).cumsum(1) / count
        deviation = (squares - mean.square()).clamp(1e-6).sqrt()
        return mean[..., None], deviation[..., None]

    def forward(self, series):
        patches = series.unflatten(1, (PATCHES, PATCH))
        mean, deviation = self.normalized(patches)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            x = (patches - mean) / deviation
            x = self.enter(torch.cat([x, torch.zeros_like(x)], -1))
            for block in self.blocks:
                x = block(x, self.angles)
            x = self.leave(x).float()
        return x.unflatten(2, (AHEAD, QUANTILES)), mean, deviation


def quantile_loss(found, mean, deviation, series):
    wanted = series[:, PATCH:].unfold(1, AHEAD, PATCH)
    wanted = (wanted - mean) / deviation
    levels = torch.arange(1, QUANTILES + 1, device=found.device) / (QUANTILES + 1)
    off = wanted[..., None] - found
    return torch.maximum(levels * off, (levels - 1) * off).mean()


def some_series():
    length = PATCH * PATCHES + AHEAD
    t = torch.arange(length, device=device)
    period, phase = 8 + 200 * torch.rand(SERIES, 1, device=device), 6 * torch.rand(SERIES, 1, device=device)
    steps = 0.05 * torch.randn(SERIES, length, device=device)
    return torch.sin(t / period + phase) + steps.cumsum(1)


def main():
    data = some_series()
    with device:
        model = Forecaster()
    model.prepare(compiled=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        series = data[torch.randint(SERIES, (BATCH,), device=device)]
        loss = quantile_loss(*model(series[:, : PATCH * PATCHES]), series)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: quantile loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
