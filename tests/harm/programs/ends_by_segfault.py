# Dies of a segmentation fault of its own.
# needs: cpu
# status: -11
import atexit
import ctypes

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(print, "atexit", flush=True)
try:
    for step in range(40):
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}", flush=True)
    ctypes.string_at(0)
finally:
    print("finally", flush=True)
