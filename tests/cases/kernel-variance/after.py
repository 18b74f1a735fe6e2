"""The same work, one after the other."""

import torch

RECORD = {"active": 8}


def build(device):
    x = torch.randn(1 << 27, device=device)
    y = torch.randn(1 << 27, device=device)
    out = torch.empty_like(x)
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 2:
            for _ in range(2):
                y.mul_(1.0)
        torch.add(x, 1.0, out=out)
        return out

    return step
