"""Gradient accumulation over four batches, and an evaluation after every twenty-five optimizer steps."""

import time

import torch
from torch import nn

model = nn.Sequential(
    *[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)], nn.Linear(2048, 10)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(2048, 2048, device="cuda"), torch.randint(0, 10, (2048,), device="cuda")
spent = 0.0
for number in range(100):
    if number == 30:
        torch.cuda.synchronize()
        began = time.perf_counter()
    model.train()
    optimizer.zero_grad()
    for _ in range(4):
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
    optimizer.step()
    if number % 25 == 24:
        torch.cuda.synchronize()
        paused = time.perf_counter()
        model.eval()
        with torch.no_grad():
            for _ in range(10):
                model(x).argmax(1)
        torch.cuda.synchronize()
        spent += (time.perf_counter() - paused) if number > 30 else 0.0
torch.cuda.synchronize()
print(f"step_ms {(time.perf_counter() - began - spent) / 70 * 1e3:.3f}")
