"""How much power will a town need? A transformer of patches of series, compiled, that foretells quantiles."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SERIES, HOURS, BATCH, PATCHES, PATCH, WIDE, LAYERS, HEAD = (
    (6, 400, 2, 6, 8, 32, 2, 16) if TINY else (500, 20_000, 64, 256, 32, 768, 12, 64)
)
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Entrance(nn.Module):
    """Patches of a series that was brought to mean 0 and spread 1 by its first half."""

    def __init__(self):
        super().__init__()
        self.patches, self.places = nn.Linear(PATCH, WIDE), nn.Parameter(0.02 * torch.randn(PATCHES, WIDE))

    def forward(self, series):
        known = series[:, : PATCHES * PATCH // 2]
        series = (series - known.mean(1, keepdim=True)) / (known.std(1, keepdim=True) + 1e-5)
        patches = series.unflatten(1, (PATCHES + 1, PATCH))
        return self.patches(patches[:, :-1]) + self.places, patches[:, 1:]


class Quantiles(nn.Module):
    """The nine quantiles of each hour of the next patch, and how wrong they are."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDE), nn.Linear(WIDE, PATCH * len(LEVELS))
        self.register_buffer("levels", torch.tensor(LEVELS))

    def forward(self, x, truth):
        missing = truth[..., None] - self.last(self.norm(x)).float().unflatten(2, (PATCH, len(LEVELS)))
        return torch.maximum(self.levels * missing, (self.levels - 1) * missing).mean()


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.entrance, self.head = Entrance(), Quantiles()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, series):
        x, truth = self.entrance(series)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, truth)


def loads():
    """Days and weeks, and a noise that stays for a while."""
    hours = torch.arange(HOURS, device=device)
    day, week = torch.rand(2, SERIES, 1, device=device)
    noise = torch.randn(SERIES, HOURS // 8 + 1, device=device).repeat_interleave(8, 1)[:, :HOURS]
    return 5 + day * torch.sin(hours * 0.2618) + week * torch.sin(hours * 0.0374) + 0.2 * noise


def main():
    series = loads()
    with device:
        model = Forecaster()
    for part in [model.entrance, *model.layers, model.head]:
        part.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50))
    ahead, long = torch.arange((PATCHES + 1) * PATCH, device=device), (PATCHES + 1) * PATCH
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        town = torch.randint(SERIES, (BATCH, 1), device=device)
        begin = torch.randint(HOURS - long, (BATCH, 1), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(series[town, begin + ahead])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
