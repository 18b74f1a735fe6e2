"""The schedule's warm-up takes the buffer before anything is recorded."""

import torch

RECORD = {"warmup": 3, "schedule_warmup": 3, "active": 30, "measure": "none"}


def build(device):
    x = torch.randn(64, 64, device=device, dtype=torch.bfloat16)

    def step():
        return torch.relu(x @ x)

    return step
