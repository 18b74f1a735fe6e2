"""The same decoder without deterministic algorithms."""

import torch
from torch import nn


def build(device):
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear")
        )
        for _ in range(3)
    ]
    model = nn.Sequential(*blocks, nn.Conv2d(64, 19, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, fused=True)
    x = torch.randn(4, 64, 16, 32, device=device)

    def step():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
