"""Python stacks and shapes of thousands of tiny operations: recording costs more than running."""

import torch

RECORD = {"with_stack": True, "active": 1, "measure": "none", "manifest": True}


def build(device):
    x = torch.randn(64, device=device)

    def step():
        y = x
        for _ in range(300):
            y = y + 1
        return y

    return step
