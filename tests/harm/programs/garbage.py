# The garbage collector frozen, switched off, watched and asked; what it finds is the program's own garbage.
# needs: cpu
import gc

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase) if info["generation"] == 2 else None)


def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


class Cycle:
    def __init__(self):
        self.me = self


gc.disable()
train(5)
gc.collect()
for turn in range(6):
    cycles = [Cycle() for _ in range(100)]
    del cycles
    train(8)
    print(turn, gc.collect() >= 100, gc.isenabled())
gc.freeze()
frozen = gc.get_freeze_count() > 0
train(90)  # until all is recorded
gc.unfreeze()
print(frozen, len(seen), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), len(gc.garbage))
