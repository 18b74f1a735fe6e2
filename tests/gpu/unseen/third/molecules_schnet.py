"""Energies of small molecules with a SchNet: continuous filters over the neighbours within five angstrom."""

import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 5 if TINY else 200)))
parser.add_argument("--molecules", type=int, default=40 if TINY else 4096)
parser.add_argument("--batch-size", type=int, default=8 if TINY else 128)
parser.add_argument("--hidden", type=int, default=16 if TINY else 128)
parser.add_argument("--gaussians", type=int, default=50)
parser.add_argument("--cutoff", type=float, default=5.0)
parser.add_argument("--interactions", type=int, default=2 if TINY else 6)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)


def radius_graph(position, cutoff):
    """Find all pairs of atoms nearer than the cutoff: (2, pairs), and how far they are."""
    distance = torch.cdist(position, position)
    near = (distance < cutoff) & ~torch.eye(len(position), dtype=torch.bool)
    source, target = near.nonzero(as_tuple=True)
    return torch.stack([source, target]), distance[source, target]


class Molecules(Dataset):
    def __init__(self, count):
        sizes = torch.randint(9, 30, (count,)).tolist()
        self.kinds = [torch.randint(1, 10, (size,)) for size in sizes]
        self.positions = [torch.randn(size, 3) * 2.2 for size in sizes]
        self.energies = torch.stack([kinds.float().sum() * 0.1 for kinds in self.kinds])
        self.edges = {}
        if "cached-edges" in FIX:
            self.edges = {i: radius_graph(position, args.cutoff) for i, position in enumerate(self.positions)}

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, i):
        edge_index, distance = self.edges.get(i) or radius_graph(self.positions[i], args.cutoff)
        return {
            "z": self.kinds[i],
            "edge_index": edge_index,
            "edge_weight": distance,
            "edge_attr": F.one_hot((distance * 4).long().clamp(max=7), 8).float(),
            "y": self.energies[i],
        }


def collate(molecules):
    """Put graphs together into one, as graph libraries do."""
    offset, edges, batch = 0, [], []
    for place, molecule in enumerate(molecules):
        edges.append(molecule["edge_index"] + offset)
        batch.append(torch.full((len(molecule["z"]),), place, dtype=torch.long))
        offset += len(molecule["z"])
    joined = {key: torch.cat([one[key] for one in molecules]) for key in ("z", "edge_weight", "edge_attr")}
    joined["y"] = torch.stack([one["y"] for one in molecules])
    return joined | {"edge_index": torch.cat(edges, 1), "batch": torch.cat(batch)}


class Interaction(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        inputs = args.gaussians + 8
        self.filter = nn.Sequential(nn.Linear(inputs, hidden), nn.Softplus(), nn.Linear(hidden, hidden))
        self.inward = nn.Linear(hidden, hidden, bias=False)
        self.outward = nn.Sequential(nn.Linear(hidden, hidden), nn.Softplus(), nn.Linear(hidden, hidden))

    def forward(self, h, edge_index, features, envelope):
        source, target = edge_index
        messages = self.inward(h)[source] * self.filter(features) * envelope.unsqueeze(1)
        gathered = torch.zeros_like(h).index_add_(0, target, messages)
        return h + self.outward(gathered)


class SchNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(10, hidden)
        self.register_buffer("centres", torch.linspace(0, args.cutoff, args.gaussians))
        self.blocks = nn.ModuleList(Interaction(hidden) for _ in range(args.interactions))
        self.head = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.Softplus(), nn.Linear(hidden // 2, 1))

    def forward(self, data):
        distance = data["edge_weight"]
        smeared = torch.exp(-10 * (distance.unsqueeze(1) - self.centres) ** 2)
        features = torch.cat([smeared, data["edge_attr"]], 1)
        envelope = 0.5 * (torch.cos(distance * torch.pi / args.cutoff) + 1)
        h = self.embedding(data["z"])
        for block in self.blocks:
            h = block(h, data["edge_index"], features, envelope)
        energies = torch.zeros(len(data["y"]), device=h.device)
        return energies.index_add_(0, data["batch"], self.head(h).squeeze(1))


workers = {"num_workers": 4, "persistent_workers": True} if "workers" in FIX else {}
loader = DataLoader(Molecules(args.molecules), args.batch_size, shuffle=True, collate_fn=collate, **workers)
model = SchNet(args.hidden).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
step, warm, epoch = 0, args.steps // 4, 0
while step < args.steps:
    for data in loader:
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        data = {key: value.to(device) for key, value in data.items()}
        loss = F.l1_loss(model(data), data["y"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        step += 1
        if step == args.steps:
            break
    epoch += 1
    print(f"epoch {epoch}: MAE {loss.item():.4f}")
spent = time.perf_counter() - start
print(f"{(args.steps - warm) / spent:.4f} it/s")
