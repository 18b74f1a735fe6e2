"""DistributedDataParallel reduces each bucket while the backward pass still runs."""

import torch

RECORD = {"ranks": 2, "active": 2}


def build(device):
    layers = [torch.nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=32)
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    return step
