"""The same, with one reduction in the last backward pass."""

from contextlib import nullcontext

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
        for number, x in enumerate(batches):
            with nullcontext() if number == len(batches) - 1 else model.no_sync():
                model(x).square().mean().backward()
        optimizer.step()

    return step
