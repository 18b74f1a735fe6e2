# Modules with a __call__, __getattr__, __eq__, __hash__, __bool__ and __len__ of their own, slots and
# metaclasses.
# needs: cpu
# suite: yes
from collections import Counter

import fingerprint
import torch
from descent import Descent
from torch import nn

seen = Counter()


class Meta(type):
    def __call__(cls, *args):
        seen["made"] += 1
        return super().__call__(*args)


class Odd(nn.Module, metaclass=Meta):
    __slots__ = ("extra",)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.extra = 1

    def __call__(self, *args, **kwargs):
        seen["call"] += 1
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name):
        seen["getattr " + name] += 1
        return super().__getattr__(name)

    def __eq__(self, other):
        seen["eq"] += 1
        raise TypeError("not to be compared")

    def __hash__(self):
        seen["hash"] += 1
        return 5

    def __bool__(self):
        seen["bool"] += 1
        raise TypeError("neither true nor false")

    def __len__(self):
        seen["len"] += 1
        return 0

    def __repr__(self):
        seen["repr"] += 1
        return "odd"

    def __del__(self):
        seen["del"] += 1

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)
model = Odd()
optimizer = Descent([model.layer.weight, model.layer.bias])
for step in range(60):
    loss = model(torch.ones(2, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        Odd()(torch.ones(1, 8))
print(sorted(seen.items()))
print(f"{loss.item():.8f}", fingerprint.draws())
