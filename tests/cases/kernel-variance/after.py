"""The hot address is summed apart, so that every step's atomics are spread."""

import torch

RECORD = {"active": 9}


def build(device):
    values = torch.randn(1 << 22, device=device)
    out = torch.zeros(1 << 20, device=device)
    spread = torch.randint(out.numel(), values.shape, device=device)

    def step():
        return out.index_add_(0, spread, values)

    return step
