# %% [markdown]
# # Growing a lizard
# A neural cellular automaton (Mordvintsev et al., Distill 2020): each cell has sixteen numbers, sees its
# neighbours and updates itself by a small network, the same for all. From a seed a picture shall grow.

# %%
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
SIDE, CHANNELS, HIDDEN, BATCH, POOL, GROWTH, CHANCE = (
    (12, 16, 16, 2, 16, (4, 6), 0.5) if TINY else (72, 16, 128, 8, 1024, (64, 96), 0.5)
)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rng = np.random.default_rng(0)

# %% [markdown]
# ## What shall grow
# Red, green, blue and alpha; a body and a tail.

# %%
axis = torch.linspace(-1, 1, SIDE, device=device)
y, x = axis[:, None], axis[None, :]
body = (x**2 / 0.12 + y**2 / 0.4 < 1).float()
tail = ((x - 0.3 * torch.sin(5 * y)).abs() < 0.08).float() * (y > 0)
alpha = torch.maximum(body, tail * (y < 0.9))
target = torch.stack([0.2 * alpha, alpha * (0.6 + 0.3 * torch.sin(20 * y)), 0.3 * alpha, alpha])

# %% [markdown]
# ## The rule
# Perception by the identity and Sobel filters, two dense layers, a mask for cells that do not fire, and
# death where no neighbour is alive.

# %%
sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
identity = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
kernels = torch.stack([identity, sobel, sobel.T]).repeat(CHANNELS, 1, 1)[:, None].to(device)


def alive(state):
    return F.max_pool2d(state[:, 3:4], 3, 1, 1) > 0.1


class Rule(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3 * CHANNELS, HIDDEN, 1)
        self.second = nn.Conv2d(HIDDEN, CHANNELS, 1, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, state):
        before = alive(state)
        perceived = F.conv2d(state, kernels, padding=1, groups=CHANNELS)
        change = self.second(F.relu(self.first(perceived)))
        fires = (torch.rand_like(state[:, :1]) <= CHANCE).float()
        state = state + change * fires
        living = (before & alive(state)).float()
        return state * living


rule = Rule().to(device)
step_of_cells = rule
if "compiled" in FIX:
    step_of_cells = torch.compile(rule, backend="inductor" if device == "cuda" else "aot_eager")

# %% [markdown]
# ## Training
# States are kept in a pool; a batch of them grows for a while, the worst of it is a seed again.

# %%
seed = np.zeros((CHANNELS, SIDE, SIDE), np.float32)
seed[3:, SIDE // 2, SIDE // 2] = 1
pool = np.repeat(seed[None], POOL, 0)
if "pool-on-device" in FIX:
    pool = torch.from_numpy(pool).to(device)
optimizer = torch.optim.Adam(rule.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)


def batch_of_states():
    chosen = rng.choice(POOL, BATCH, replace=False)
    if "pool-on-device" in FIX:
        chosen = torch.from_numpy(chosen).to(device)
        states = pool[chosen]
        errors = (states[:, :4] - target).square().mean((1, 2, 3))
        states[errors.argmax()] = start
        return chosen, states
    states = torch.from_numpy(pool[chosen]).to(device)
    errors = (states[:, :4] - target).square().mean((1, 2, 3)).cpu().numpy()
    states[int(errors.argmax())] = start
    return chosen, states


start = torch.from_numpy(seed).to(device)
times, growths, losses = [], [], []
for iteration in range(STEPS):
    began = time.perf_counter()
    chosen, states = batch_of_states()
    growth = int(rng.integers(*GROWTH))
    for _ in range(growth):
        states = step_of_cells(states)
    loss = (states[:, :4] - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.grad /= parameter.grad.norm() + 1e-8
    optimizer.step()
    schedule.step()
    pool[chosen] = states.detach() if "pool-on-device" in FIX else states.detach().cpu().numpy()
    losses.append(loss.item())
    times.append(time.perf_counter() - began)
    growths.append(growth)
    if iteration % 20 == 0:
        print(f"iteration {iteration}: loss {losses[-1]:.5f}")

# %% [markdown]
# ## How it went

# %%
since = min(STEPS // 2, 5)
print(f"loss {losses[-1]:.6f}; {1e3 * sum(times[since:]) / sum(growths[since:]):.5f} ms per step of growth")
