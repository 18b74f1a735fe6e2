"""A step whose device work hides what recording costs."""

import torch

RECORD = {"shapes": False, "active": 2, "measure": "none", "manifest": True}


def build(device):
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def step():
        y = x
        for _ in range(50):
            y = y @ x
        torch.cuda.synchronize()
        return y

    return step
