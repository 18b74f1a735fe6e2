"""A vocabulary of 50257: odd, so no row of the weight starts on 16 bytes."""

import torch


def build(device):
    x = torch.randn(2048, 1023, device=device, dtype=torch.bfloat16)
    w = torch.randn(1023, 50257, device=device, dtype=torch.bfloat16)

    def step():
        return x @ w

    return step
