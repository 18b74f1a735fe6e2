"""A tensor on the CPU among the inputs: Inductor does not use CUDA graphs, whatever the mode says."""

import torch

RECORD = {"fresh_process": True, "compile_log": True}


def build(device):
    x = torch.randn(64, 64, device=device)
    scale = torch.ones(4)

    @torch.compile(mode="reduce-overhead")
    def chain(x, scale):
        for _ in range(60):
            x = torch.relu(x @ x)
        return x, scale * 2

    def step():
        return chain(x, scale)

    return step
