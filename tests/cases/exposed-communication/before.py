"""The gradients are all-reduced one after the other once the backward pass is done."""

import torch
import torch.distributed as dist

RECORD = {"ranks": 2, "active": 2}


def build(device):
    layers = [torch.nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def step():
        model.zero_grad()
        model(x).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)

    return step
