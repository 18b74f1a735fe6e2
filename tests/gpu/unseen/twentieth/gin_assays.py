"""Which of twelve assays does a molecule answer to? A graph isomorphism network over small graphs."""

import os
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import RandomSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 150))
MOLECULES, BATCH, WIDE, LAYERS = (12, 4, 16, 2) if TINY else (6144, 512, 256, 5)
ATOMS, BONDS, ASSAYS = 40, 5, 12
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
warnings.filterwarnings("ignore")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class GIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(ATOMS, WIDE), nn.Embedding(BONDS, WIDE)
        self.layers = nn.ModuleList(
            GINEConv(
                nn.Sequential(
                    nn.Linear(WIDE, 2 * WIDE), nn.BatchNorm1d(2 * WIDE), nn.ReLU(), nn.Linear(2 * WIDE, WIDE)
                ),
                train_eps=True,
            )
            for _ in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDE) for _ in range(LAYERS))
        self.head = nn.Linear(WIDE, ASSAYS)

    def forward(self, data):
        x, bonds = self.atoms(data.x), self.bonds(data.edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.relu(norm(layer(x, data.edge_index, bonds)))
        return self.head(global_add_pool(x, data.batch, size=data.num_graphs) / 25)


def molecule():
    """A tree of atoms with a few rings, every bond in both directions."""
    size = int(torch.randint(12, 40, ()))
    parents = (torch.rand(size - 1) * torch.arange(1, size)).long()
    rings = torch.randint(size, (2, 3))
    bonds = torch.cat([torch.stack([torch.arange(1, size), parents]), rings], 1)
    kinds = torch.randint(BONDS, (bonds.shape[1],))
    x = torch.randint(ATOMS, (size,))
    y = (x.bincount(minlength=ATOMS)[:ASSAYS] > 1).float()[None]
    return Data(x=x, edge_index=torch.cat([bonds, bonds.flip(0)], 1), edge_attr=kinds.repeat(2), y=y)


def main():
    molecules = [molecule() for _ in range(MOLECULES)]
    workers = (1 if TINY else 6) if "workers" in FIX else 0
    loader = DataLoader(
        molecules,
        batch_size=BATCH,
        sampler=RandomSampler(molecules, generator=torch.Generator().manual_seed(1)),
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    with device:
        model = GIN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    lead, began, step, shown = min(STEPS // 2, MOLECULES // BATCH), 0.0, 0, 0.0
    while step < STEPS:
        for data in loader:
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            data = data.to(device)
            loss = F.binary_cross_entropy_with_logits(model(data), data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % 12 == 0 or step == STEPS - 1:
                shown = loss.item()
            step += 1
            if step == STEPS:
                break
        print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
