"""How does a flag move? A network that passes messages over meshes, its layers compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
KEPT, BATCH, ROWS, COLUMNS, WIDE, LAYERS = (3, 2, 4, 5, 16, 2) if TINY else (16, 4, 40, 48, 128, 15)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def mlp(enter, leave, norm=True):
    layers = [nn.Linear(enter, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, leave)]
    return nn.Sequential(*layers, *([nn.LayerNorm(leave)] if norm else []))


def scatter_sum(values, index, size=None):
    """The sum of what belongs to each place."""
    if size is None:
        size = int(index.max()) + 1
    return values.new_zeros(size, values.shape[1]).index_add_(0, index, values)


class Layer(nn.Module):
    """Edges look at their ends, then nodes at their edges."""

    def __init__(self):
        super().__init__()
        self.edge, self.node = mlp(3 * WIDE, WIDE), mlp(2 * WIDE, WIDE)

    def forward(self, nodes, edges, senders, receivers):
        seen = self.edge(torch.cat([nodes[senders], nodes[receivers], edges], 1))
        size = len(nodes) if "known-size" in FIX else None
        near = scatter_sum(seen, receivers, size)
        return nodes + self.node(torch.cat([nodes, near], 1)), edges + seen


class MeshGraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes, self.edges = mlp(7, WIDE), mlp(7, WIDE)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = mlp(WIDE, 3, norm=False)

    def forward(self, features, lengths, senders, receivers):
        nodes, edges = self.nodes(features), self.edges(lengths)
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, senders, receivers)
        return self.last(nodes)


def mesh():
    """A cloth of triangles: edges in both directions, for a batch of cloths."""
    places = torch.arange(ROWS * COLUMNS, device=device).view(ROWS, COLUMNS)
    pairs = [
        (places[:, :-1], places[:, 1:]),
        (places[:-1], places[1:]),
        (places[:-1, :-1], places[1:, 1:]),
    ]
    one = torch.cat([a.flatten() for a, _ in pairs])
    two = torch.cat([b.flatten() for _, b in pairs])
    offsets = ROWS * COLUMNS * torch.arange(BATCH, device=device)[:, None]
    senders = (torch.cat([one, two]) + offsets).flatten()
    return senders, (torch.cat([two, one]) + offsets).flatten()


def moments(senders, receivers):
    """Cloths at some moment, and how each place is drawn by its neighbours."""
    kept = []
    count = BATCH * ROWS * COLUMNS
    for _ in range(KEPT):
        where, speed = torch.randn(count, 3, device=device), torch.randn(count, 3, device=device)
        held = (torch.rand(count, 1, device=device) < 0.02).float()
        apart = where[senders] - where[receivers]
        far = apart.norm(dim=1, keepdim=True)
        lengths = torch.cat([apart, far, apart / (far + 0.1)], 1)
        pull = torch.zeros_like(where).index_add_(0, receivers, apart) / 6 - 0.1 * speed
        kept.append((torch.cat([where, speed, held], 1), lengths, (1 - held) * pull))
    return kept


def main():
    senders, receivers = mesh()
    kept = moments(senders, receivers)
    with device:
        model = MeshGraphNet()
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        features, lengths, target = kept[step % KEPT]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(features, lengths, senders, receivers)
        loss = F.mse_loss(found.float(), target)
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
