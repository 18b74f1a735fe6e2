"""Adam, one parameter at a time."""

import torch


def build(device):
    parameters = [torch.nn.Parameter(torch.randn(1024, 1024, device=device)) for _ in range(40)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, foreach=False, fused=False)

    def step():
        optimizer.step()

    return step
