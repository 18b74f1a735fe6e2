"""Will it be clicked? A deep and cross network over hashed fields of impressions, with Adagrad."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 400))
WARM = min(STEPS // 2, 20)
IMPRESSIONS, FIELDS, NUMBERS, BUCKETS, BATCH, EMBEDDED, INNER, CROSSES = (
    (100, 5, 3, 40, 16, 4, 8, 2) if TINY else (400_000, 26, 13, 1_200_000, 4096, 16, 400, 3)
)
WIDTH = FIELDS * EMBEDDED + NUMBERS
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class FieldsEmbedding(nn.Module):
    """One table for all fields, each with a part of its own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(FIELDS * BUCKETS, EMBEDDED, sparse="sparse" in FIX, device=device)
        nn.init.uniform_(self.table.weight, -0.01, 0.01)
        self.register_buffer("offsets", torch.arange(FIELDS) * BUCKETS)

    def forward(self, x):
        return self.table(x + self.offsets).flatten(1)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(CROSSES))

    def forward(self, x):
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class DCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cross = FieldsEmbedding(), Cross()
        self.deep = nn.Sequential(
            nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, INNER), nn.ReLU(), nn.Linear(INNER, INNER)
        )
        self.out = nn.Linear(WIDTH + INNER, 1)

    def forward(self, fields, numbers):
        x = torch.cat([self.embedding(fields), numbers], 1)
        return self.out(torch.cat([self.cross(x), self.deep(x)], 1)).squeeze(1)


class Impressions:
    """What was shown and whether it was clicked: hashes that are drawn by a power law, and counts."""

    def __init__(self):
        rng = np.random.default_rng(0)
        drawn = rng.random((IMPRESSIONS, FIELDS), dtype=np.float32) ** 3
        self.fields = torch.from_numpy((drawn * BUCKETS).astype(np.int64).clip(0, BUCKETS - 1))
        self.numbers = torch.from_numpy(
            np.log1p(rng.gamma(1.0, 5.0, (IMPRESSIONS, NUMBERS))).astype(np.float32)
        )
        self.clicks = ((self.fields[:, 0] % 7 == 0) | (self.numbers[:, 0] > 2.5)).float()
        self.order = torch.Generator().manual_seed(1)
        if "data-on-device" in FIX:
            self.fields, self.numbers, self.clicks = (
                data.to(device) for data in (self.fields, self.numbers, self.clicks)
            )

    def batch(self):
        rows = torch.randint(0, IMPRESSIONS, (BATCH,), generator=self.order)
        cuda = device.type == "cuda"
        if "data-on-device" in FIX:
            rows = (rows.pin_memory() if cuda else rows).to(device, non_blocking=True)
            return self.fields[rows], self.numbers[rows], self.clicks[rows]
        parts = [data[rows] for data in (self.fields, self.numbers, self.clicks)]
        return [(part.pin_memory() if cuda else part).to(device, non_blocking=True) for part in parts]


data, model = Impressions(), DCN().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
total, shown = torch.zeros((), device=device), 0.0
for step in range(STEPS):
    if step == WARM:
        began = clock()
    fields, numbers, clicks = data.batch()
    loss = F.binary_cross_entropy_with_logits(model(fields, numbers), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    if step % 50 == 49 or step == STEPS - 1:
        shown = total.item() / (step % 50 + 1)
        total.zero_()
        print(f"step {step}: loss {shown:.5f}")
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {shown:.5f}; {each:.3f} ms per step")
