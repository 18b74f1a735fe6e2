"""The compiled function brings its inputs to the CPU: nothing in it can be recorded as a CUDA graph."""

import torch

RECORD = {"fresh_process": True, "compile_log": True}


def build(device):
    x, y = torch.randn(8, device=device), torch.randn(8, device=device)

    @torch.compile(mode="reduce-overhead")
    def total(x, y):
        return (x.cpu() * 2).sum() + y.cpu().sum()

    def step():
        return total(x, y)

    return step
