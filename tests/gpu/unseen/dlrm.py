# Click prediction after DLRM: 26 embedding tables, a bottom and a top MLP, pairwise interactions.
import os
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

batch_size = 64 if TINY else 4096
num_steps = int(os.environ.get("STEPS", 6 if TINY else 900))
scale = 1000 if TINY else 1
table_sizes = (
    [4_000_000, 3_000_000, 2_500_000, 2_000_000, 1_500_000, 1_000_000] + [300_000] * 12 + [20_000] * 8
)
table_sizes = [max(4, size // scale) for size in table_sizes]
dim, dense_features = 64, 13
np.random.seed(123)
torch.manual_seed(123)


def mlp(*sizes):
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = np.cumsum([0, *table_sizes[:-1]])
        sizes = [sum(table_sizes)] if "one-table" in FIX else table_sizes
        with torch.device(device):
            self.tables = nn.ModuleList(
                nn.EmbeddingBag(size, dim, mode="sum", sparse="sparse" in FIX) for size in sizes
            )
        self.bottom = mlp(dense_features, 512, 256, dim)
        self.top = mlp(dim + 27 * 26 // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1), persistent=False)

    def forward(self, dense, indices, bags):
        x = self.bottom(dense)
        if "one-table" in FIX:
            rows = torch.stack([i + int(o) for i, o in zip(indices, self.offsets, strict=True)], 1)
            looked_up = list(self.tables[0](rows.view(-1, 1)).view(len(dense), 26, dim).unbind(1))
        else:
            looked_up = [table(i, bags) for table, i in zip(self.tables, indices, strict=True)]
        features = torch.stack([x, *looked_up], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        interactions = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, interactions], 1)).squeeze(1)


def make_batch():
    dense = np.log1p(np.random.exponential(2, (batch_size, dense_features))).astype(np.float32)
    sparse = [np.minimum(np.random.zipf(1.3, batch_size) - 1, size - 1) for size in table_sizes]
    label = (np.random.rand(batch_size) < 0.25).astype(np.float32)
    return torch.tensor(dense), [torch.tensor(s) for s in sparse], torch.tensor(label)


model = DLRM().to(device)
if "sparse" in FIX:
    optimizers = [
        torch.optim.SparseAdam(model.tables.parameters(), lr=1e-3),
        torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=1e-3),
    ]
else:
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True if "fused" in FIX else None)]
loss_fn = nn.BCEWithLogitsLoss()
batches = [make_batch() for _ in range(20)]
bags = torch.arange(batch_size, device=device)

total_time = total_loss = counted = 0
for step in range(num_steps):
    t1 = time.time()
    dense, indices, label = batches[step % len(batches)]
    dense = dense.to(device)
    indices = [i.to(device) for i in indices]
    label = label.to(device)

    logits = model(dense, indices, bags)
    loss = loss_fn(logits, label)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    total_loss += loss.item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    if step >= num_steps // 4:
        total_time += time.time() - t1
        counted += 1
    if (step + 1) % 100 == 0:
        print(f"step {step + 1}/{num_steps}, loss {total_loss / 100:.6f}")
        total_loss = 0
rate = batch_size * counted / total_time
print(f"Finished training, {total_time / counted * 1000:.3f} ms/it, {rate:.0f} samples/s")
