"""A Fourier neural operator for Darcy flow: from a permeability field to the pressure, on a grid."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))
TRAIN, BATCH, SIDE, MODES, WIDTH = (8, 2, 16, 3, 8) if TINY else (512, 64, 128, 16, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class SpectralConv2d(nn.Module):
    """Low frequencies are multiplied by weights of their own, the others are dropped."""

    def __init__(self):
        super().__init__()
        scale = 1 / WIDTH**2
        shape = (WIDTH, WIDTH, MODES, MODES)
        self.weights1 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))

    @staticmethod
    def multiply(x, weights):
        if "batched-product" in FIX:
            b, i, m, n = x.shape
            x = x.permute(2, 3, 0, 1).reshape(m * n, b, i)
            weights = weights.permute(2, 3, 0, 1).reshape(m * n, i, -1)
            return torch.bmm(x, weights).view(m, n, b, -1).permute(2, 3, 0, 1)
        return torch.einsum("bixy,ioxy->boxy", x, weights)

    def forward(self, x):
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(*x.shape[:3], x.size(3) // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, :MODES, :MODES] = self.multiply(spectrum[:, :, :MODES, :MODES], self.weights1)
        out[:, :, -MODES:, :MODES] = self.multiply(spectrum[:, :, -MODES:, :MODES], self.weights2)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(3, WIDTH, 1)
        self.spectral = nn.ModuleList(SpectralConv2d() for _ in range(4))
        self.skips = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(4))
        self.project1, self.project2 = nn.Conv2d(WIDTH, 2 * WIDTH, 1), nn.Conv2d(2 * WIDTH, 1, 1)
        line = torch.linspace(0, 1, SIDE)
        self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="ij"))[None])

    def forward(self, a):
        x = self.lift(torch.cat([a, self.grid.expand(len(a), -1, -1, -1)], 1))
        for i, (spectral, skip) in enumerate(zip(self.spectral, self.skips, strict=True)):
            x = spectral(x) + skip(x)
            if i < 3:
                x = F.gelu(x)
        return self.project2(F.gelu(self.project1(x)))


def relative_l2(predicted, target):
    difference = (predicted - target).flatten(1).norm(dim=1)
    return (difference / target.flatten(1).norm(dim=1)).sum()


def darcy(count):
    """Two materials; the pressure is a smoothed reply to them."""
    coarse = torch.randn(count, 1, SIDE // 8, SIDE // 8, device=device)
    field = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic")
    a = torch.where(field > 0, 1.0, 0.25)
    u = F.avg_pool2d(1 / a, 9, 1, 4, count_include_pad=False)
    return a, u + 0.2 * F.avg_pool2d(u, 9, 1, 4, count_include_pad=False)


a, u = darcy(TRAIN)
a, u = (a - a.mean()) / a.std(), u / u.std()
model = FNO2d().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(STEPS, 1))
step, epoch, times = 0, 0, []
while step < STEPS:
    order, train_l2, seen = torch.randperm(TRAIN, device=device), 0.0, 0
    for rows in order.split(BATCH):
        if step == STEPS:
            break
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = relative_l2(model(a[rows]), u[rows])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if "loss-rarely" in FIX:
            train_l2 = train_l2 + loss.detach()
            if step % 10 == 9:
                float(train_l2)
        else:
            train_l2 += loss.item()
        seen += BATCH
        step += 1
        times.append(time.perf_counter() - began)
    print(f"epoch {epoch}: train relative L2 {float(train_l2) / seen:.5f}")
    epoch += 1
kept = times[min(STEPS // 2, 9) :]
print(f"relative L2 {float(train_l2) / seen:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
