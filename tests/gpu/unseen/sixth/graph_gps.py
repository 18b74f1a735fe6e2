"""Properties of molecules with a graph transformer (GPS): edges, attention, Laplacian positions."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool
from torch_geometric.transforms import AddLaplacianEigenvectorPE
from torch_geometric.utils import to_undirected

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
MOLECULES, BATCH, WIDTH, LAYERS, HEADS, ATOMS, BONDS, EIGEN = (
    (24, 6, 16, 2, 2, 28, 4, 3) if TINY else (2048, 128, 128, 5, 4, 28, 4, 8)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def molecule():
    """A random tree of atoms with a few rings."""
    n = int(torch.randint(14, 38, ()))
    parents = (torch.rand(n - 1) * torch.arange(1, n)).long()
    extra = torch.randint(n, (2, 3))
    edges = torch.cat([torch.stack([parents, torch.arange(1, n)]), extra[:, extra[0] != extra[1]]], 1)
    edge_index = to_undirected(edges)
    x = torch.randint(ATOMS, (n,))
    edge_attr = (edge_index.sum(0) % BONDS).long()
    y = torch.log(x.float() + 1).mean() + 0.1 * edge_index.size(1) / n
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=y.view(1))


class Molecules(Dataset):
    def __init__(self, count, transform=None, pre_transform=None):
        self.graphs = [molecule() for _ in range(count)]
        if pre_transform is not None:
            self.graphs = [pre_transform(graph) for graph in self.graphs]
        self.transform = transform

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, idx):
        graph = self.graphs[idx].clone()
        return graph if self.transform is None else self.transform(graph)


class GPS(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(ATOMS, WIDTH - 8), nn.Embedding(BONDS, WIDTH)
        self.pe_norm, self.pe = nn.BatchNorm1d(EIGEN), nn.Linear(EIGEN, 8)
        self.layers = nn.ModuleList()
        for _ in range(LAYERS):
            mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            self.layers.append(GPSConv(WIDTH, GINEConv(mlp), heads=HEADS, attn_type="multihead"))
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH // 2), nn.ReLU(), nn.Linear(WIDTH // 2, 1))

    def forward(self, data):
        positions = self.pe(self.pe_norm(data.laplacian_eigenvector_pe))
        x = torch.cat([self.atoms(data.x), positions], 1)
        edge_attr = self.bonds(data.edge_attr)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch, edge_attr=edge_attr)
        return self.head(global_add_pool(x, data.batch, size=data.num_graphs)).squeeze(-1)


positions = AddLaplacianEigenvectorPE(EIGEN, is_undirected=True)
if "positions-once" in FIX:
    dataset = Molecules(MOLECULES, pre_transform=positions)
else:
    dataset = Molecules(MOLECULES, transform=positions)
loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True)
model = GPS().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
step, epoch, times = 0, 0, []
while step < STEPS:
    model.train()
    total = seen = 0
    began = time.perf_counter()
    for data in loader:
        data = data.to(device)
        optimizer.zero_grad()
        loss = F.l1_loss(model(data), data.y)
        loss.backward()
        optimizer.step()
        total += loss.detach() if "loss-rarely" in FIX else loss.item()
        seen += 1
        step += 1
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        if step == STEPS:
            break
    print(f"Epoch: {epoch:02d}, Train MAE: {float(total) / seen:.4f}")
    epoch += 1
kept = times[min(STEPS // 2, 8) :]
print(f"MAE {float(total) / seen:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
