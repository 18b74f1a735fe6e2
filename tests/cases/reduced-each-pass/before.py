"""Gradients of four batches are accumulated, and DistributedDataParallel reduces them after each."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RECORD = {"ranks": 2}


def build(device):
    layers = [nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = torch.randn(4, 512, 4096, device=device, dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad()
        for x in batches:
            model(x).square().mean().backward()
        optimizer.step()

    return step
