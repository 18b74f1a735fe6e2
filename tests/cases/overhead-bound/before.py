"""A deep, narrow network on a batch of eight: each kernel takes two microseconds, each launch takes more."""

import torch


def build(device):
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(24)]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    x = torch.randn(8, 256, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        return model(x)

    return step
