"""The loop is inside the compiled function: one entry."""

import torch


@torch.compile
def shift_all(x):
    for _ in range(40):
        x = x + 1
    return x


def build(device):
    x = torch.randn(256, device=device)

    def step():
        return shift_all(x)

    return step
