"""The weights are kept in the type that they are used in."""

import torch


def build(device):
    weights = [torch.randn(8192, 8192, device=device).to(torch.bfloat16) for _ in range(6)]
    x = torch.randn(512, 8192, device=device, dtype=torch.bfloat16)

    def step():
        h = x
        for w in weights:
            h = h @ w
        return h

    return step
