"""The smallest loop there is: one module called on the CPU."""

import time

import torch
from torch import nn

model, x = nn.Linear(16, 16), torch.randn(4, 16)
with torch.no_grad():
    for number in range(60_000):
        if number == 20_000:
            began = time.perf_counter()
        model(x)
print(f"step_ms {(time.perf_counter() - began) / 40_000 * 1e3:.5f}")
