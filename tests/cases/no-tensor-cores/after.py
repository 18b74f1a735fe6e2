"""TF32 is allowed."""

import torch


def build(device):
    torch.set_float32_matmul_precision("high")
    x = torch.randn(4096, 4096, device=device)

    def step():
        return x @ x

    return step
