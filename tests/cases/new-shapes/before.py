"""Each batch is padded to its own longest sample: cuDNN plans its convolutions anew for every length."""

import torch

RECORD = {"active": 6}


def build(device):
    layers = [torch.nn.Conv1d(80, 512, 5, padding=2)]
    for _ in range(4):
        layers += [torch.nn.ReLU(), torch.nn.Conv1d(512, 512, 5, padding=2)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    longest = iter(range(400, 100_000, 7))

    def step():
        x = torch.randn(16, 80, next(longest) % 1200 + 400, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
