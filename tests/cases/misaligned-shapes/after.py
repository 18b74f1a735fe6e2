"""Padded to multiples of 64."""

import torch


def build(device):
    x = torch.randn(2048, 1024, device=device, dtype=torch.bfloat16)
    w = torch.randn(1024, 50304, device=device, dtype=torch.bfloat16)

    def step():
        return x @ w

    return step
