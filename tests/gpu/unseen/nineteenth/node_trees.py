"""A table learned by trees that can be differentiated: oblivious ones, a thousand in each of two layers."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
ROWS, COLUMNS, BATCH, TREES, DEPTH, UNITS, LAYERS = (
    (64, 6, 8, 8, 3, 2, 2) if TINY else (200_000, 90, 1024, 1024, 6, 3, 2)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def entmax15(z, dim):
    """Chances of which most are nothing at all, exactly."""
    z = (z - z.amax(dim, keepdim=True)) / 2
    ordered = z.sort(dim, descending=True).values
    shape = [1] * z.dim()
    shape[dim] = -1
    rho = torch.arange(1, z.shape[dim] + 1, device=z.device, dtype=z.dtype).view(shape)
    mean, squares = ordered.cumsum(dim) / rho, ordered.square().cumsum(dim) / rho
    delta = ((1 - rho * (squares - mean.square())) / rho).clamp(
        min=1e-12
    )  # no root of nothing: it has no slope
    tau = mean - delta.sqrt()
    support = (tau <= ordered).sum(dim, keepdim=True)
    return (z - tau.gather(dim, support - 1)).clamp(min=0).square()


def entmoid15(z):
    """The same of two, of which one is zero."""
    size = z.abs()
    tau = (size + (8 - size.square()).clamp(min=1e-12).sqrt()) / 2
    tau = torch.where(tau <= size, torch.full_like(tau, 2.0), tau)
    small = 0.25 * (tau - size).clamp(min=0).square()
    return torch.where(z >= 0, 1 - small, small)


class ODST(nn.Module):
    """Trees whose levels each ask one question, of a column that is chosen softly."""

    def __init__(self, enter):
        super().__init__()
        self.response = nn.Parameter(0.1 * torch.randn(TREES, UNITS, 2**DEPTH))
        self.choice = nn.Parameter(torch.rand(enter, TREES, DEPTH))
        self.thresholds = nn.Parameter(0.5 * torch.randn(TREES, DEPTH))
        self.log_temperatures = nn.Parameter(torch.zeros(TREES, DEPTH))
        leaves, levels = torch.arange(2**DEPTH), 2 ** torch.arange(DEPTH)
        codes = (leaves[None] // levels[:, None] % 2).float()
        self.register_buffer("codes", torch.stack([codes, 1 - codes], -1))  # depth, leaves, which side

    def forward(self, x):
        chosen = torch.einsum("bi,itd->btd", x, entmax15(self.choice, 0))
        logits = (chosen - self.thresholds) * torch.exp(-self.log_temperatures)
        bins = entmoid15(torch.stack([-logits, logits], -1))
        if "grown-leaves" in FIX:
            leaves = bins[:, :, 0, [1, 0]]
            for level in range(1, DEPTH):
                leaves = (bins[:, :, level, [1, 0], None] * leaves[:, :, None]).flatten(2)
        else:
            matches = torch.einsum("btds,dcs->btdc", bins, self.codes)
            leaves = matches.prod(-2)
        return torch.einsum("btc,tuc->btu", leaves, self.response)


class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(ODST(COLUMNS + i * TREES * UNITS) for i in range(LAYERS))

    def forward(self, x):
        first = x.shape[1]
        for layer in self.layers:
            x = torch.cat([x, layer(x).flatten(1)], 1)
        return x[:, first:].unflatten(1, (-1, UNITS))


def table():
    """Columns, and a number that follows some of them in steps."""
    x = torch.randn(ROWS, COLUMNS, device=device)
    y = (x[:, 0] > 0.3).float() * (x[:, 1] < 0) + 0.5 * (x[:, 2] > x[:, 3]).float()
    return x, y + 0.1 * torch.randn(ROWS, device=device)


def main():
    x, y = table()
    with device:
        model = DenseBlock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(ROWS, (BATCH,), device=device)
        answer = model(x[chosen])[..., 0].mean(1)
        loss = F.mse_loss(answer, y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
