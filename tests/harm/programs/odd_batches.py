# Loaders of every kind, whose batches hold masks of every kind: sparse, nested, quantized, none; loaders that
# fail, are left half read, read by hand, or of a class of the program's.
# needs: cpu
import itertools
import warnings
from typing import NamedTuple

import fingerprint
import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(0)
model = nn.Linear(16, 4)
optimizer = Descent(model.parameters())


def fit(x):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class Sub(torch.Tensor):
    pass


class Refuses:
    def __getattr__(self, name):
        raise RuntimeError(name)


ones = torch.ones(8, 16)
MASKS = [
    *(ones.to_sparse(), ones.bool(), ones.to("meta"), torch.tensor(3), torch.ones(0, 4), np.ones((8, 16))),
    *([[1, 0]] * 8, None, "text", torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]), Refuses()),
    *(torch.ones(8, 16, requires_grad=True), ones.to(torch.complex64), ones.as_subclass(Sub)),
    torch.quantize_per_tensor(ones, 0.1, 0, torch.quint8),
]


class Masked(Dataset):
    def __len__(self):
        return 4 * len(MASKS)

    def __getitem__(self, index):
        return {"x": torch.full((8, 16), index / 100), "attention_mask": MASKS[index % len(MASKS)]}


class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.full((16,), index % 7 / 7) for index in range(120))


class Counting(DataLoader):
    count = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.count += 1
            yield batch


class Fails(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        if index == 150:
            raise KeyError("a file is missing")
        return torch.full((16,), index / 200)


class Pair(NamedTuple):
    x: torch.Tensor
    attention_mask: torch.Tensor


print([f"{fit(batch['x']):.6f}" for batch in DataLoader(Masked(), batch_size=None)][-2:])
counting = Counting(Stream(), batch_size=2, num_workers=2, persistent_workers=True)
print(f"{[fit(x) for x in counting][-1]:.6f}", counting.count)
for workers in (0, 2):
    done = 0
    try:
        for x in DataLoader(Fails(), batch_size=2, num_workers=workers):
            fit(x)
            done += 1
    except KeyError as error:
        print(done, type(error).__name__)
long, short = (DataLoader(TensorDataset(torch.randn(n, 16)), 4, shuffle=True) for n in (200, 40))
for (x,), (y,) in zip(long, itertools.cycle(short), strict=False):
    last = fit(x + y)
for _ in range(40):
    last = fit(next(iter(long))[0])
for _ in range(20):
    for (x,), _ in zip(long, range(3), strict=False):
        last = fit(x)
pairs = DataLoader([Pair(torch.ones(16), torch.ones(3)) for _ in range(80)], 2)
print(f"{last:.6f} {[fit(pair.x) for pair in pairs][-1]:.6f} {type(pair := next(iter(pairs))).__name__}")
print(fingerprint.weights(model), fingerprint.draws())
