"""It stays on the device."""

import torch

RECORD = {"fresh_process": True, "compile_log": True}


def build(device):
    x, y = torch.randn(8, device=device), torch.randn(8, device=device)

    @torch.compile(mode="reduce-overhead")
    def total(x, y):
        return (x * 2).sum() + y.sum()

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        return total(x, y)

    return step
