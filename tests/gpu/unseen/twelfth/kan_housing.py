"""What is a house worth? A network whose edges are splines, each with knots of its own."""

import itertools
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 120))
ROWS, BATCH, WIDTHS, GRID, ORDER = (
    (64, 16, (4, 6, 1), 4, 3) if TINY else (65_536, 2048, (32, 64, 64, 1), 5, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def bases(x, knots):
    """Values of all basis functions, by the recursion of Cox and de Boor: knots are in the last dimension."""
    x = x[..., None]
    found = ((x >= knots[..., :-1]) & (x < knots[..., 1:])).to(x.dtype)
    for k in range(1, ORDER + 1):
        rise = (x - knots[..., : -(k + 1)]) / (knots[..., k:-1] - knots[..., : -(k + 1)])
        fall = (knots[..., k + 1 :] - x) / (knots[..., k + 1 :] - knots[..., 1:-k])
        found = rise * found[..., :-1] + fall * found[..., 1:]
    return found


class KANLayer(nn.Module):
    """A spline and a SiLU on each edge from an input to an output."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        step = 4 / GRID
        knots = torch.arange(-ORDER, GRID + ORDER + 1) * step - 2
        self.register_buffer("knots", knots.repeat(inputs * outputs, 1))
        self.coefficients = nn.Parameter(0.1 * torch.randn(inputs * outputs, GRID + ORDER))
        self.scale_base = nn.Parameter(torch.randn(inputs * outputs) / inputs**0.5)
        self.scale_spline = nn.Parameter(torch.full((inputs * outputs,), inputs**-0.5))

    def forward(self, x):
        if "bases-of-inputs" in FIX:
            return self.by_inputs(x)
        x = x[:, None].expand(-1, self.outputs, -1).reshape(len(x), -1)  # an edge each
        splines = torch.einsum("bek,ek->be", bases(x, self.knots), self.coefficients)
        y = self.scale_base * F.silu(x) + self.scale_spline * splines
        return y.view(len(x), self.outputs, self.inputs).sum(2)

    def by_inputs(self, x):
        """Edges of an input have its bases in common, so that all edges are two products."""
        weight = (self.scale_spline[:, None] * self.coefficients).view(self.outputs, -1)
        splines = F.linear(bases(x, self.knots[: self.inputs]).flatten(1), weight)
        return splines + F.linear(F.silu(x), self.scale_base.view(self.outputs, self.inputs))

    def smoothness(self):
        return self.coefficients.diff(dim=1).abs().mean()


class KAN(nn.Module):
    def __init__(self):
        super().__init__()
        pairs = itertools.pairwise(WIDTHS)
        self.layers = nn.ModuleList(KANLayer(a, b) for a, b in pairs)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x[:, 0]


def table():
    """Houses of a country, on the device."""
    x = torch.randn(ROWS, WIDTHS[0], device=device).clamp(-1.9, 1.9)
    worth = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3:].square().mean(1)
    return x, worth + 0.05 * torch.randn(ROWS, device=device)


def main():
    x, y = table()
    model = KAN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    lead, began, step, shown, smooth = min(STEPS // 2, 5), 0.0, 0, 0.0, 0.0
    while step < STEPS:
        mixed = torch.randperm(ROWS, device=device)
        for chosen in mixed.split(BATCH):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            error = F.mse_loss(model(x[chosen]), y[chosen])
            rough = sum(layer.smoothness() for layer in model.layers)
            loss = error + 0.001 * rough
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown, smooth = error.item(), rough.item()
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"error {shown:.5f}, roughness {smooth:.5f}; {each:.3f} ms per step")


main()
