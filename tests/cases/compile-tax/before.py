"""Forty calls of a compiled function that does one tiny thing: guards and wrappers cost more than kernels."""

import torch


@torch.compile
def shift(x):
    return x + 1


def build(device):
    x = torch.randn(256, device=device)

    def step():
        h = x
        for _ in range(40):
            h = shift(h)
        return h

    return step
