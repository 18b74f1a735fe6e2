"""The same average over the whole list at once."""

import torch


def build(device):
    parameters = [torch.randn(64, 64, device=device) for _ in range(150)]
    averages = [p.clone() for p in parameters]

    def step():
        torch._foreach_lerp_(averages, parameters, 0.01)

    return step
