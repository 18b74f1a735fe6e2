"""Batches are padded to the next multiple of 256: after a few steps every length is known."""

import torch

RECORD = {"active": 6, "warmup": 400}


def build(device):
    layers = [torch.nn.Conv1d(80, 512, 5, padding=2)]
    for _ in range(4):
        layers += [torch.nn.ReLU(), torch.nn.Conv1d(512, 512, 5, padding=2)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    longest = iter(range(400, 100_000, 7))

    def step():
        length = -(-(next(longest) % 1200 + 400) // 256) * 256
        x = torch.randn(16, 80, length, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
