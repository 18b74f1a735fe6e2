# Interrupts itself, as Ctrl-C does.
# needs: cpu
# status: -2
# suite: yesimport atexit
import signal

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
    signal.raise_signal(signal.SIGINT)
finally:
    print("finally", flush=True)
