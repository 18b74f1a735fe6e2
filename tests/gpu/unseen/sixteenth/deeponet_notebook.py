"""A notebook turned script: DeepONet, which learns what a load does to a plate, anywhere on it."""

# %% What is needed
import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
LOADS, SENSORS, POINTS, WIDE, LAYERS, BATCH, WAVES = (
    (12, 16, 40, 16, 2, 4, 2) if TINY else (4096, 256, 8192, 1024, 5, 2048, 6)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rng = np.random.default_rng(0)
torch.manual_seed(0)

# %% Data: waves on a square, and how far it bends under them
side = int(SENSORS**0.5)
axis = np.linspace(0, 1, side + 2)[1:-1]
sensors = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
points = rng.uniform(size=(POINTS, 2))
rates = np.pi * np.stack(np.meshgrid(np.arange(1, WAVES + 1), np.arange(1, WAVES + 1)), -1).reshape(-1, 2)


def waves(at):
    return np.sin(at[:, None, 0] * rates[:, 0]) * np.sin(at[:, None, 1] * rates[:, 1])


strengths = rng.standard_normal((LOADS, len(rates)))
loads = strengths @ waves(sensors).T
bends = 1e3 * (strengths / (rates**2).sum(1) ** 2) @ waves(points).T

# %% To the device
loads, bends, points = (torch.from_numpy(one).to(device) for one in (loads, bends, points))
if "single" in FIX:
    torch.set_float32_matmul_precision("high")
    loads, bends, points = loads.float(), bends.float(), points.float()


# %% The network: one part for loads, one for places
def perceptron(wide):
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(wide, WIDE), nn.Tanh()]
        wide = WIDE
    return nn.Sequential(*layers[:-1])


class DeepONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch, self.trunk = perceptron(SENSORS), perceptron(2)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, loads, points):
        return self.branch(loads) @ torch.tanh(self.trunk(points)).T / WIDE**0.5 + self.bias


with device:
    model = DeepONet()
model = model.to(loads.dtype)  # as the data
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995)

# %% Training
lead, began, history = min(STEPS // 2, 6), 0.0, []
for step in range(STEPS):
    if step == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    chosen = torch.randint(LOADS, (BATCH,), device=device)
    loss = nn.functional.mse_loss(model(loads[chosen], points), bends[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        history.append(loss.item())
    if step % 50 == 0:
        print(f"step {step}: loss {history[-1]:.5f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"loss {history[-1]:.6f}; {each:.3f} ms per step")
