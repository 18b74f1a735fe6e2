"""How strongly is it charged? Molecules as complete graphs, with a network that turns as they turn."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 150))
SIZE, BATCH, LEAST, MOST, KINDS, WIDE, LAYERS = (
    (24, 4, 3, 6, 5, 8, 1) if TINY else (6000, 128, 12, 29, 5, 128, 5)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def molecules():
    """Stands in for a file: atoms, their places and a charge for each molecule."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(SIZE):
        count = int(rng.integers(LEAST, MOST + 1))
        kinds = rng.integers(KINDS, size=count)
        places = rng.normal(0, 1.5, (count, 3)).astype(np.float32)
        charge = np.float32(0.1 * (kinds * np.linalg.norm(places, axis=1)).mean())
        found.append((kinds, places, charge))
    return found


def edges_of(counts):
    """All pairs of atoms of a molecule, with the molecule's first atom as their beginning."""
    rows, columns, first = [], [], 0
    for count in counts:
        for i in range(count):
            for j in range(count):
                if i != j:
                    rows.append(first + i)
                    columns.append(first + j)
        first += count
    return torch.LongTensor(rows).to(device), torch.LongTensor(columns).to(device)


def edges_on_device(counts):
    """The same pairs, from a table of atoms that are there."""
    count = torch.tensor(counts, device=device)
    there = torch.arange(MOST, device=device) < count[:, None]
    pairs = there[:, :, None] & there[:, None] & ~torch.eye(MOST, dtype=torch.bool, device=device)
    molecule, i, j = pairs.nonzero(as_tuple=True)
    first = (count.cumsum(0) - count)[molecule]
    return first + i, first + j


def collate(batch):
    """The atoms of all molecules one after the other."""
    kinds, places, charges = zip(*batch, strict=True)
    counts = [len(one) for one in kinds]
    owner = np.repeat(np.arange(len(counts)), counts)
    arrays = np.concatenate(kinds), np.concatenate(places), owner, np.array(charges)
    kinds, places, owner, charges = (torch.from_numpy(one).to(device) for one in arrays)
    rows, columns = (edges_on_device if "edges-on-device" in FIX else edges_of)(counts)
    return F.one_hot(kinds, KINDS).float(), places, rows, columns, owner, charges


def segment_sum(x, places, count):
    result = x.new_zeros(count, x.shape[1])
    return result.scatter_add_(0, places[:, None].expand(-1, x.shape[1]), x)


class Layer(nn.Module):
    """Messages along edges; atoms move along them, too."""

    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * WIDE + 1, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE), nn.SiLU())
        self.node = nn.Sequential(nn.Linear(2 * WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.gate = nn.Sequential(nn.Linear(WIDE, 1), nn.Sigmoid())
        self.shift = nn.Sequential(nn.Linear(WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, 1, bias=False))

    def forward(self, h, x, rows, columns):
        between = x[rows] - x[columns]
        distance = between.square().sum(1, keepdim=True)
        message = self.edge(torch.cat([h[rows], h[columns], distance], 1))
        message = message * self.gate(message)
        moved = between / (distance.sqrt() + 1) * torch.tanh(self.shift(message))
        x = x + segment_sum(moved, rows, len(x)) / MOST
        return h + self.node(torch.cat([h, segment_sum(message, rows, len(h))], 1)), x


class EGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(KINDS, WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.atom = nn.Sequential(nn.Linear(WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.last = nn.Sequential(nn.Linear(WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, 1))

    def forward(self, kinds, x, rows, columns, owner, count):
        h = self.enter(kinds)
        for layer in self.layers:
            h, x = layer(h, x, rows, columns)
        return self.last(segment_sum(self.atom(h), owner, count) / MOST)[:, 0]


def main():
    data, order = molecules(), np.random.default_rng(1)
    model = EGNN().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-16)
    lead, began, shown, step = min(STEPS // 2, 5), 0.0, 0.0, 0
    while step < STEPS:
        mixed = order.permutation(SIZE)
        for batch in (mixed[i : i + BATCH] for i in range(0, SIZE - BATCH + 1, BATCH)):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            kinds, x, rows, columns, owner, charges = collate([data[i] for i in batch])
            loss = F.l1_loss(model(kinds, x, rows, columns, owner, len(charges)), charges)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = loss.item()
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
