"""Sand that a graph network moves: it goes on by itself, each grain looking at those near it."""

import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 60))
GRAINS, WIDE, LAYERS, RADIUS = (60, 16, 2, 0.2) if TINY else (2000, 128, 10, 0.044)
KINDS, HISTORY, STRENGTH, REST = 3, 5, 2e-5, 0.98
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def mlp(enter, leave, norm=True):
    layers = [nn.Linear(enter, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, leave)]
    return nn.Sequential(*layers, nn.LayerNorm(leave)) if norm else nn.Sequential(*layers)


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge, self.node = mlp(3 * WIDE, WIDE), mlp(2 * WIDE, WIDE)

    def forward(self, nodes, edges, senders, receivers):
        edges = edges + self.edge(torch.cat([edges, nodes[senders], nodes[receivers]], 1))
        received = torch.zeros_like(nodes).index_add(0, receivers, edges)
        return nodes + self.node(torch.cat([nodes, received], 1)), edges


class Simulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(KINDS, 16)
        self.encode_nodes, self.encode_edges = mlp(2 * HISTORY + 4 + 16, WIDE), mlp(3, WIDE)
        self.layers = nn.ModuleList(Interaction() for _ in range(LAYERS))
        self.decode = mlp(WIDE, 2, norm=False)

    def neighbours(self, positions):
        """Who is near whom: senders and receivers."""
        if "near-on-device" in FIX:
            far = (positions[:, None] - positions[None]).square().sum(2).sqrt()
            senders, receivers = (far < RADIUS).nonzero(as_tuple=True)
            return senders, receivers
        points = positions.cpu().numpy()
        far = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))
        senders, receivers = np.nonzero(far < RADIUS)
        return torch.from_numpy(senders).to(device), torch.from_numpy(receivers).to(device)

    def forward(self, positions, speeds, kinds):
        senders, receivers = self.neighbours(positions)
        walls = torch.cat([positions, 1 - positions], 1).div(RADIUS).clamp(max=1)
        nodes = self.encode_nodes(torch.cat([speeds.flatten(1) * 1e3, walls, self.kinds(kinds)], 1))
        between = (positions[senders] - positions[receivers]) / RADIUS
        edges = self.encode_edges(torch.cat([between, between.norm(dim=1, keepdim=True)], 1))
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, senders, receivers)
        return STRENGTH * self.decode(nodes).tanh()


@torch.no_grad()
def main():
    with device:
        simulator = Simulator().eval()
        kinds = torch.randint(KINDS, (GRAINS,))
        positions = 0.05 + 0.9 * torch.rand(GRAINS, 2)
        speeds = 1e-4 * torch.randn(GRAINS, HISTORY, 2)
    beginning, frames = positions, []
    lead, began = min(STEPS // 2, 6), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        pushed = simulator(positions, speeds, kinds)
        speed = REST * speeds[:, -1] + pushed
        positions = (positions + speed).clamp(0, 1)
        speeds = torch.cat([speeds[:, 1:], speed[:, None]], 1)
        frames.append(positions if "frames-at-end" in FIX else positions.cpu())
        if step % 50 == 0:
            print(f"moment {step} of {STEPS}")
    film = torch.stack(frames).cpu()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    moved = (film[-1] - beginning.cpu()).norm(dim=1).mean().item()
    print(f"{len(film)} frames, moved by {moved:.7f}; {each:.3f} ms per moment")


main()
