"""The same net without anomaly detection."""

import torch
from torch import nn


def block(channels):
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())


def build(device):
    torch.autograd.set_detect_anomaly(False)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *(block(64) for _ in range(16))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, fused=True)
    x = torch.randn(16, 3, 32, 32, device=device)

    def step():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
