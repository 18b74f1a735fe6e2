"""LightGCN with BPR: three propagations over the graph of all purchases, then a batch of triples."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
config = {
    "users": 200 if TINY else 30_000,
    "items": 300 if TINY else 40_000,
    "purchases": 2_000 if TINY else 1_500_000,
    "dim": 64,
    "layers": 3,
    "batch": 128 if TINY else 2048,
    "decay": 1e-4,
    "steps": int(os.environ.get("STEPS", 6 if TINY else 300)),
}
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2020)
rng = np.random.default_rng(2020)


class Purchases:
    """Who bought what; popular items are bought more often."""

    def __init__(self):
        n, m, k = config["users"], config["items"], config["purchases"]
        users = rng.integers(0, n, k)
        items = np.minimum((rng.random(k) ** 2 * m).astype(np.int64), m - 1)
        pairs = np.unique(users * m + items)
        self.users, self.items = pairs // m, pairs % m

    def graph(self):
        """Return the normalised adjacency of users and items, a sparse matrix with both directions."""
        n = config["users"] + config["items"]
        rows = np.concatenate([self.users, self.items + config["users"]])
        cols = np.concatenate([self.items + config["users"], self.users])
        degree = np.bincount(rows, minlength=n).clip(1)
        values = 1 / np.sqrt(degree[rows] * degree[cols])
        index = torch.from_numpy(np.stack([rows, cols]))
        matrix = torch.sparse_coo_tensor(index, torch.from_numpy(values).float(), (n, n))
        return matrix.to(device).coalesce()

    def triples(self):
        """Shuffle all purchases and draw an item for each that was not bought (nearly surely)."""
        order = rng.permutation(len(self.users))
        negatives = rng.integers(0, config["items"], len(order))
        columns = (self.users[order], self.items[order], negatives)
        return [torch.from_numpy(column).to(device) for column in columns]


class Symmetric(torch.autograd.Function):
    """A product with a symmetric matrix, which is its own transpose in the backward pass."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx, gradient):
        return None, torch.sparse.mm(ctx.matrix, gradient)


class LightGCN(nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.user, self.item = (nn.Embedding(config[kind], config["dim"]) for kind in ("users", "items"))
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.graph = graph.to_sparse_csr() if "symmetric" in FIX else graph

    def computer(self):
        x = torch.cat([self.user.weight, self.item.weight])
        layers = [x]
        for _ in range(config["layers"]):
            x = Symmetric.apply(self.graph, x) if "symmetric" in FIX else torch.sparse.mm(self.graph, x)
            layers.append(x)
        mean = torch.stack(layers, dim=1).mean(dim=1)
        return torch.split(mean, [config["users"], config["items"]])

    def bpr_loss(self, users, positive, negative):
        all_users, all_items = self.computer()
        u, p, n = all_users[users], all_items[positive], all_items[negative]
        own = [self.user(users), self.item(positive), self.item(negative)]
        penalty = sum(part.norm(2).pow(2) for part in own) / 2 / len(users)
        loss = F.softplus((u * n).sum(1) - (u * p).sum(1)).mean()
        return loss + config["decay"] * penalty


def batches(dataset):
    while True:
        columns = dataset.triples()
        yield from zip(*(column.split(config["batch"]) for column in columns), strict=True)


dataset = Purchases()
model = LightGCN(dataset.graph()).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True if "fused" in FIX else None)
warm, total = config["steps"] // 5, 0.0
for step, (users, positive, negative) in zip(range(config["steps"]), batches(dataset), strict=False):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.time()
    loss = model.bpr_loss(users, positive, negative)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.cpu().item()

spent = time.time() - start
print(f"aver loss {total / config['steps']:.5f}")
print(f"{1e3 * spent / (config['steps'] - warm):.4f} ms a batch")
