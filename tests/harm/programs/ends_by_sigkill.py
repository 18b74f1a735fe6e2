# Sends SIGKILL to itself.
# needs: cpu
# status: -9
import atexit
import os
import signal
import time

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
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)
finally:
    print("finally", flush=True)
