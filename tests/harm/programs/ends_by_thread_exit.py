# Another thread ends the process by os._exit(7) while the main thread trains.
# needs: cpu
# status: 7
# suite: yesimport atexit
import os
import threading

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
    threading.Timer(0.05, os._exit, (7,)).start()
    while True:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
finally:
    print("finally", flush=True)
