"""The parameter is unbound once: its gradient is one stack of the experts'."""

import torch


def build(device):
    experts, tokens, width = 16, 256, 1024
    weight = torch.nn.Parameter(torch.randn(experts, width, width, device=device, dtype=torch.bfloat16))
    parts = torch.randn(experts, tokens, width, device=device, dtype=torch.bfloat16).unbind(0)

    def step():
        weight.grad = None
        outputs = [part @ expert for part, expert in zip(parts, weight.unbind(0), strict=True)]
        torch.cat(outputs).square().mean().backward()

    return step
