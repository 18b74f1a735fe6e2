"""A float32 product at PyTorch's default precision uses no tensor cores."""

import torch


def build(device):
    torch.set_float32_matmul_precision("highest")
    x = torch.randn(4096, 4096, device=device)

    def step():
        return x @ x

    return step
