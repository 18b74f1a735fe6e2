"""What will be clicked next? A graph of each session, in which an item is one node however often it came."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SESSIONS, ITEMS, BATCH, LONGEST, WIDE = (40, 50, 6, 8, 16) if TINY else (16_384, 40_000, 512, 20, 128)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def graph_of(clicks, most):
    """Which node each click is, who leads to whom, and what the nodes are."""
    nodes = np.unique(clicks)
    adjacent = np.zeros((most, most))
    for i in np.arange(len(clicks) - 1):
        if clicks[i + 1] == 0:
            break
        u = np.where(nodes == clicks[i])[0][0]
        v = np.where(nodes == clicks[i + 1])[0][0]
        adjacent[u][v] = 1
    into = np.sum(adjacent, 0)
    into[into == 0] = 1
    out = np.sum(adjacent, 1)
    out[out == 0] = 1
    both = np.concatenate([np.divide(adjacent, into), np.divide(adjacent.T, out)]).T
    padded = nodes.tolist() + (most - len(nodes)) * [0]
    return [np.where(nodes == one)[0][0] for one in clicks], both, padded


def slices(batch):
    """The graphs of a batch, which comes from the device."""
    clicks = batch.cpu().numpy()
    most = max(len(np.unique(one)) for one in clicks)
    alias, adjacent, nodes = zip(*(graph_of(one, most) for one in clicks), strict=True)
    return (
        torch.tensor(np.array(alias)).to(device),
        torch.tensor(np.array(adjacent), dtype=torch.float32).to(device),
        torch.tensor(nodes).to(device),
    )


class GGNN(nn.Module):
    """One round of messages along and against the clicks, into a gated cell."""

    def __init__(self):
        super().__init__()
        self.along, self.against = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.enter, self.hidden = nn.Linear(2 * WIDE, 3 * WIDE), nn.Linear(WIDE, 3 * WIDE)

    def forward(self, adjacent, x):
        n = adjacent.shape[1]
        along = adjacent[:, :, :n] @ self.along(x)
        against = adjacent[:, :, n:] @ self.against(x)
        r1, z1, n1 = self.enter(torch.cat([along, against], 2)).chunk(3, 2)
        r2, z2, n2 = self.hidden(x).chunk(3, 2)
        new = torch.tanh(n1 + torch.sigmoid(r1 + r2) * n2)
        return new + torch.sigmoid(z1 + z2) * (x - new)


class SRGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.graph = nn.Embedding(ITEMS, WIDE, padding_idx=0), GGNN()
        self.one, self.two, self.three = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 1)
        self.both = nn.Linear(2 * WIDE, WIDE)
        for weight in self.parameters():
            nn.init.uniform_(weight, -(WIDE**-0.5), WIDE**-0.5)

    def forward(self, clicks, lengths, graphs=None):
        alias, adjacent, nodes = slices(clicks) if graphs is None else graphs
        x = self.graph(adjacent, self.items(nodes))
        x = x.gather(1, alias[:, :, None].expand(-1, -1, WIDE))
        last = x[torch.arange(len(x), device=device), lengths - 1]
        weights = self.three(torch.sigmoid(self.one(last)[:, None] + self.two(x)))
        whole = (weights * x * (clicks > 0)[:, :, None]).sum(1)
        return self.both(torch.cat([whole, last], 1)) @ self.items.weight.T


class KeptGraphs:
    """The graph of each session made once, before training, and held on the device."""

    def __init__(self, sessions):
        made = [graph_of(one, LONGEST + 1) for one in sessions.cpu().numpy()]
        alias, adjacent, nodes = (np.array(one) for one in zip(*made, strict=True))
        self.alias, self.nodes = torch.tensor(alias).to(device), torch.tensor(nodes).to(device)
        self.adjacent = torch.tensor(adjacent, dtype=torch.float32).to(device)

    def __call__(self, chosen):
        return self.alias[chosen], self.adjacent[chosen], self.nodes[chosen]


def browsed():
    """Who looks at an item looks at others of its kind, and often at the same again."""
    lengths = 2 + torch.poisson(torch.full((SESSIONS,), 0.3 * LONGEST)).clamp(max=LONGEST - 2).long()
    begin = torch.randint(1, ITEMS - 10, (SESSIONS, 1))
    clicks = begin + torch.randint(10, (SESSIONS, LONGEST))
    clicks[torch.arange(LONGEST) >= lengths[:, None]] = 0
    return clicks.to(device), lengths.to(device), (begin[:, 0] + torch.randint(10, (SESSIONS,))).to(device)


def main():
    clicks, lengths, labels = browsed()
    model = SRGNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=device.type == "cuda")
    kept = KeptGraphs(clicks) if "graphs-kept" in FIX else None
    order, place, shown = torch.randperm(SESSIONS, device=device), 0, 0.0
    lead, began = min(STEPS // 2, 5), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if place + BATCH > SESSIONS:
            order, place = torch.randperm(SESSIONS, device=device), 0
        chosen = order[place : place + BATCH]
        place += BATCH
        scores = model(clicks[chosen], lengths[chosen], kept(chosen) if kept else None)
        loss = F.cross_entropy(scores, labels[chosen])
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
