# What runs at the end runs in its order: finally, threads, atexit, weak references, __del__ at shutdown.
# needs: cpu
import atexit
import threading
import time
import weakref

import torch
from torch import nn


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name, flush=True)


def linger():
    time.sleep(0.2)
    print("thread over", flush=True)


atexit.register(print, "registered before training", flush=True)
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weakref.finalize(model, print, "model finalized", flush=True)
for _ in range(45):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
atexit.register(print, "registered after training", flush=True)
threading.Thread(target=linger).start()
noisy = Noisy("global")
print("end of script", flush=True)
