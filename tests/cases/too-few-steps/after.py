"""Five do."""

import torch

RECORD = {"active": 5, "measure": "none"}


def build(device):
    x = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)

    def step():
        return x @ x

    return step
