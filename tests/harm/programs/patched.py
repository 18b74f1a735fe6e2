# The program patches what is often patched: the call of modules, the step of optimizers, and clocks that
# stand still or run backwards.
# needs: cpu
# arguments: torch | clocks
# suite: torch
import sys
import time

import fingerprint
import torch
from descent import Descent
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
calls = {"call": 0, "step": 0, "backward": 0}


def patch(owner, name, counter):
    original = getattr(owner, name)

    def patched(*args, **kwargs):
        calls[counter] += 1
        return original(*args, **kwargs)

    setattr(owner, name, patched)
    return original


model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
optimizer = Descent(model.parameters())


def train(steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.8f}", calls)


train(3)
if sys.argv[1] == "torch":
    originals = patch(nn.Module, "__call__", "call"), patch(Descent, "step", "step")
    backward = patch(torch.Tensor, "backward", "backward")
    train(30)
    nn.Module.__call__, Descent.step = originals
    torch.Tensor.backward = backward
else:
    now = time.time()
    time.perf_counter = time.monotonic = time.time = lambda: now
    time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: int(now * 1e9)
    train(30)
    ticks = iter(range(10**6, 0, -1))
    time.perf_counter = time.monotonic = time.time = lambda: float(next(ticks))
train(50)
print(fingerprint.weights(model), fingerprint.draws())
