"""A small training loop on the CPU that waits for its loader: four workers, prefetching eight batches
each."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 32 * 260

    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((64,), float(i % 7)), i % 4


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters())
for number, (x, y) in enumerate(DataLoader(Slow(), 32, num_workers=4, prefetch_factor=8)):
    if number == 60:
        began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(f"step_ms {(time.perf_counter() - began) / 200 * 1e3:.3f}")
