"""The compiled function returns nothing, so the compiler drops all of its work."""

import torch


@torch.compile
def fused(a, b, c):
    d = a * b + c  # noqa: F841


def build(device):
    a, b, c = (torch.randn(8192, 8192, device=device) for _ in range(3))

    def step():
        return fused(a, b, c)

    return step
