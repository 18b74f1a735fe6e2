"""The step waits for its own work, so nothing is left for the profiler to wait for."""

import torch

RECORD = {"measure": "none"}


def build(device):
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def step():
        for _ in range(20):
            y = x @ x
        torch.cuda.synchronize()
        return y

    return step
