"""A graph net of two layers writes a message for each of a million edges, and adds them up by node."""

import torch

NODES, EDGES, WIDTH = 100_000, 1_000_000, 128


def build(device):
    source, target = torch.randint(0, NODES, (2, EDGES), device=device)
    weight = torch.rand(EDGES, device=device)
    layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), fused=True)
    features = torch.randn(NODES, WIDTH, device=device)
    labels = torch.randint(0, WIDTH, (NODES,), device=device)

    def propagate(x):
        messages = x.index_select(0, source) * weight.unsqueeze(1)
        return torch.zeros_like(x).index_add_(0, target, messages)

    def step():
        x = features
        for layer in layers:
            x = torch.relu(propagate(layer(x)))
        torch.nn.functional.cross_entropy(x, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
