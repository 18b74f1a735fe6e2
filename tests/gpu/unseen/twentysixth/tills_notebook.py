# %% [markdown]
# # Sales of many tills
# Each till has a level of its own that is smoothed exponentially; what is left over, an LSTM forecasts.
# Smoothing and LSTM are learned together.

# %%
import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
TILLS, WEEKS, BATCH, WINDOW, AHEAD, WIDE = (24, 30, 8, 6, 2, 16) if TINY else (8192, 260, 1024, 12, 4, 64)
QUANTILE = 0.48
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")

# %% [markdown]
# ## Data

# %%
week = torch.arange(WEEKS, device=device)
noise = 0.1 * torch.randn(TILLS, WEEKS, device=device)
walk = 0.03 * torch.randn(TILLS, WEEKS, device=device).cumsum(1)
phase = 6.3 * torch.rand(TILLS, 1, device=device)
sales = torch.exp(
    3 + torch.randn(TILLS, 1, device=device) + walk + 0.2 * torch.sin(week / 8.3 + phase) + noise
)
sales.shape, sales.mean()

# %% [markdown]
# ## Model


# %%
class Smoothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.speeds = nn.Embedding(TILLS, 1)
        nn.init.constant_(self.speeds.weight, -1.0)

    def forward(self, tills, series):
        alpha = torch.sigmoid(self.speeds(tills)).squeeze(1)
        if "levels-at-once" in FIX:
            lag = week[:, None] - week
            powers = torch.exp(torch.log1p(-alpha)[:, None, None] * lag.clamp(min=0)).tril()
            first = torch.cat([series[:, :1], alpha[:, None] * series[:, 1:]], 1)
            return (powers * first[:, None]).sum(2)
        levels = [series[:, 0]]
        for t in range(1, series.shape[1]):
            level = alpha * series[:, t] + (1 - alpha) * levels[t - 1]
            levels.append(level)
        return torch.stack(levels, 1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.smoothing = Smoothing()
        self.lstm = nn.LSTM(WINDOW, WIDE, batch_first=True)
        self.head = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, AHEAD))

    def forward(self, tills, series):
        """What is forecast and what came, after each window, both relative to the level at its end."""
        levels = self.smoothing(tills, series)
        level = levels[:, WINDOW - 1 : WEEKS - AHEAD, None]
        past = series[:, : WEEKS - AHEAD].unfold(1, WINDOW, 1)
        coming = series[:, WINDOW:].unfold(1, AHEAD, 1)
        hidden, _ = self.lstm(torch.log(past / level))
        return self.head(hidden), torch.log(coming / level)


def pinball(found, right):
    missed = right - found
    return torch.maximum(QUANTILE * missed, (QUANTILE - 1) * missed).mean()


# %%
model = Forecaster().to(device)
optimizer = torch.optim.Adam(
    [
        {"params": model.smoothing.parameters(), "lr": 1e-2},
        {"params": [*model.lstm.parameters(), *model.head.parameters()], "lr": 1e-3},
    ]
)
sum(one.numel() for one in model.parameters())

# %% [markdown]
# ## Training

# %%
losses = []
lead, began = min(STEPS // 2, 10), 0.0
for step in range(STEPS):
    if step == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    tills = torch.randint(TILLS, (BATCH,), device=device)
    found, right = model(tills, sales[tills])
    loss = pinball(found, right)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    optimizer.step()
    losses.append(loss.detach() if "loss-rarely" in FIX else loss.item())
    if step % 20 == 0:
        print(f"step {step}: loss {losses[-1]:.5f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"loss {losses[-1]:.7f}; {each:.3f} ms per step")
