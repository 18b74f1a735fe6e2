"""The profiler stops right after the last launch: what is still running is waited for in one long call."""

import torch

RECORD = {"measure": "none"}


def build(device):
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def step():
        for _ in range(20):
            y = x @ x
        return y

    return step
