"""fused=True: one kernel updates a whole list of parameters."""

import torch


def build(device):
    parameters = [torch.nn.Parameter(torch.randn(1024, 1024, device=device)) for _ in range(40)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, fused=True)

    def step():
        optimizer.step()

    return step
