"""A loop over experts selects each one's weight from the stacked parameter."""

import torch


def build(device):
    experts, tokens, width = 16, 256, 1024
    weight = torch.nn.Parameter(torch.randn(experts, width, width, device=device, dtype=torch.bfloat16))
    parts = torch.randn(experts, tokens, width, device=device, dtype=torch.bfloat16).unbind(0)

    def step():
        weight.grad = None
        outputs = [part @ weight[i] for i, part in enumerate(parts)]
        torch.cat(outputs).square().mean().backward()

    return step
