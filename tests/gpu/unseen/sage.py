"""GraphSAGE with neighbour sampling on a product graph that does not need a graph library."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
NODES, DEGREE, FEATURES, CLASSES = (2_000, 8, 16, 5) if TINY else (1_000_000, 15, 256, 47)
FANOUTS, BATCH = (10, 15), 32 if TINY else 1024
STEPS = int(os.environ.get("STEPS", 8 if TINY else 400))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# a synthetic graph as CSR; hubs are neighbours of many
degrees = torch.randint(1, 2 * DEGREE, (NODES,))
indptr = torch.cat([torch.zeros(1, dtype=torch.long), degrees.cumsum(0)])
indices = (torch.rand(int(indptr[-1])) ** 2 * NODES).long()
x = torch.randn(NODES, FEATURES)
y = torch.randint(0, CLASSES, (NODES,))
if "sample-on-device" in FIX:
    indptr, indices = indptr.to(device), indices.to(device)
if "features-on-device" in FIX:
    x, y = x.to(device), y.to(device)


def sample(seeds):
    """Node ids of all hops (seeds first), and for each layer the edges among them (source, target)."""
    nodes, edges = seeds, []
    for fanout in FANOUTS:
        degree = indptr[nodes + 1] - indptr[nodes]
        pick = (torch.rand(len(nodes), fanout, device=nodes.device) * degree[:, None]).long()
        neighbours = indices[indptr[nodes][:, None] + pick]
        targets = torch.arange(len(nodes), device=nodes.device)[:, None].expand(-1, fanout)
        new = torch.unique(neighbours)
        new = new[~torch.isin(new, nodes)]
        everything = torch.cat([nodes, new])
        order = torch.argsort(everything)
        local = order[torch.searchsorted(everything[order], neighbours.flatten())]
        edges.insert(0, (local, targets.flatten(), len(nodes)))
        nodes = everything
    return nodes, edges


def collate(seeds):
    seeds = torch.stack(seeds).to(indptr.device)
    nodes, edges = sample(seeds)
    return seeds, x[nodes.to(x.device)], y[seeds.to(y.device)], edges


class SAGEConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, h, source, target, count):
        gathered = h[source]
        mean = torch.zeros(count, h.shape[1], device=h.device).index_add_(0, target, gathered)
        degree = torch.zeros(count, device=h.device).index_add_(
            0, target, torch.ones_like(target, dtype=h.dtype)
        )
        return self.own(h[:count]) + self.others(mean / degree.clamp(min=1)[:, None])


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(FEATURES, 256), SAGEConv(256, CLASSES)])

    def forward(self, h, edges):
        for layer, (source, target, count) in zip(self.layers, edges, strict=True):
            h = layer(h, source, target, count)
            if layer is not self.layers[-1]:
                h = F.dropout(F.relu(h), 0.5, self.training)
        return h


model = SAGE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
workers = {"num_workers": 8, "persistent_workers": True} if "workers" in FIX else {}
loader = DataLoader(torch.arange(NODES), BATCH, shuffle=True, collate_fn=collate, **workers)
step, correct, seen, since = 0, 0, 0, 0.0
while step < STEPS:
    for seeds, features, labels, edges in loader:
        if step == STEPS // 4:
            since = time.perf_counter()
        features, labels = features.to(device), labels.to(device)
        edges = [(s.to(device), t.to(device), n) for s, t, n in edges]
        out = model(features, edges)
        loss = F.cross_entropy(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((out.argmax(1) == labels).sum())
        seen += len(seeds)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, accuracy {correct / seen:.4f}")
        if step == STEPS:
            break
print(f"{(time.perf_counter() - since) / (STEPS - STEPS // 4):.6f} s per mini-batch")
