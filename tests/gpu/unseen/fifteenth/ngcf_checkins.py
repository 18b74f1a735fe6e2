"""Where does one go next? Neural graph collaborative filtering of people and places, by pairs."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 80))
PEOPLE, PLACES, VISITS, BATCH, WIDE, HOPS = (
    (30, 40, 300, 32, 8, 2) if TINY else (30_000, 40_000, 900_000, 8192, 64, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Pairs(Dataset):
    """Batches of a person, a place that it visited, and one that it did not."""

    def __init__(self, people, places):
        order = np.argsort(people, kind="stable")
        bounds = np.searchsorted(people[order], np.arange(PEOPLE + 1))
        self.visited = [places[order[a:b]] for a, b in pairwise(bounds)]
        self.seen = [set(one.tolist()) for one in self.visited]

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        rng = np.random.default_rng(step)
        people, there, elsewhere = rng.integers(PEOPLE, size=BATCH), [], []
        for person in people:
            mine = self.visited[person]
            there.append(mine[rng.integers(len(mine))])
            while True:
                place = int(rng.integers(PLACES))
                if place not in self.seen[person]:
                    break
            elsewhere.append(place)
        return torch.from_numpy(people), torch.tensor(np.array(there)), torch.tensor(elsewhere)


class NGCF(nn.Module):
    def __init__(self, adjacency):
        super().__init__()
        self.adjacency = adjacency
        self.people, self.places = nn.Embedding(PEOPLE, WIDE), nn.Embedding(PLACES, WIDE)
        for table in (self.people, self.places):
            nn.init.xavier_uniform_(table.weight)
        self.sums = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(HOPS))
        self.products = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(HOPS))

    def forward(self):
        x = torch.cat([self.people.weight, self.places.weight])
        kept = [x]
        for together, product in zip(self.sums, self.products, strict=True):
            near = torch.sparse.mm(self.adjacency, x)
            x = F.leaky_relu(together(near + x) + product(near * x), 0.2)
            kept.append(F.normalize(x, dim=1))
        return torch.cat(kept, 1).split([PEOPLE, PLACES])


def visits():
    """Everyone goes to places of one region, and once to one somewhere else."""
    rng = np.random.default_rng(0)
    people = np.concatenate([np.arange(PEOPLE), rng.integers(PEOPLE, size=VISITS)])
    places = (people % 20) + 20 * rng.integers(PLACES // 20, size=len(people))
    places[:PEOPLE] = rng.integers(PLACES, size=PEOPLE)
    return people, places


def normalized(people, places):
    """Both directions, each divided by the roots of both degrees."""
    pairs = torch.from_numpy(np.unique(people * PLACES + places)).to(device)
    ends = torch.stack([pairs // PLACES, PEOPLE + pairs % PLACES])
    ends = torch.cat([ends, ends.flip(0)], 1)
    root = torch.bincount(ends[0], minlength=PEOPLE + PLACES).clamp(min=1).float().rsqrt()
    return torch.sparse_coo_tensor(
        ends, root[ends[0]] * root[ends[1]], (PEOPLE + PLACES, PEOPLE + PLACES)
    ).coalesce()


def main():
    people, places = visits()
    pairs, adjacency = Pairs(people, places), normalized(people, places)
    with device:
        model = NGCF(adjacency)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    workers = (2 if TINY else 8) if "sampled-by-workers" in FIX else 0
    batches = iter(DataLoader(pairs, batch_size=None, num_workers=workers))
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        who, there, elsewhere = (one.to(device) for one in next(batches))
        all_people, all_places = model()
        person, one, two = all_people[who], all_places[there], all_places[elsewhere]
        ranks = -F.logsigmoid((person * one).sum(1) - (person * two).sum(1)).mean()
        loss = ranks + 1e-5 * (person.square().sum() + one.square().sum() + two.square().sum()) / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
