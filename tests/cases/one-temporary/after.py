"""Distances of all pairs by the op that computes them."""

import torch

RECORD = {"memory": True, "fresh_process": True}


def build(device):
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2048, 64, device=device)

    def step():
        optimizer.zero_grad()
        y = model(x)
        with torch.no_grad():
            near = torch.cdist(y, y).mean(1, keepdim=True)
        (y * near).sum().backward()
        optimizer.step()

    return step
