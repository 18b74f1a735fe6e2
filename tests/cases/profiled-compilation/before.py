"""The profiler sees the first call of a compiled function: most of what it records is the compiler."""

import torch

RECORD = {"warmup": 0, "schedule_warmup": 0, "active": 1, "measure": "recorded", "fresh_process": True}


@torch.compile
def fused(a, b, c):
    return a * b + c


def build(device):
    a, b, c = (torch.randn(4096, 4096, device=device) for _ in range(3))

    def step():
        return fused(a, b, c)

    return step
