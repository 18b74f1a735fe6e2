"""An exponential moving average of 150 small parameters, updated one at a time in a loop."""

import torch


def build(device):
    parameters = [torch.randn(64, 64, device=device) for _ in range(150)]
    averages = [p.clone() for p in parameters]

    def step():
        for average, parameter in zip(averages, parameters, strict=True):
            average.mul_(0.99)
            average.add_(parameter, alpha=0.01)

    return step
