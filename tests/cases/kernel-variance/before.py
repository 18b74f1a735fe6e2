"""Every third step adds all its values at one address: the kernel is the same, its atomics queue up."""

import torch

RECORD = {"active": 9}


def build(device):
    values = torch.randn(1 << 22, device=device)
    out = torch.zeros(1 << 20, device=device)
    spread = torch.randint(out.numel(), values.shape, device=device)
    hot = torch.where(torch.rand(values.shape, device=device) < 0.05, 7, spread)
    state = {"step": 0}

    def step():
        state["step"] += 1
        return out.index_add_(0, hot if state["step"] % 3 == 0 else spread, values)

    return step
