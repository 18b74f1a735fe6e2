"""The bias is one row: cuBLASLt adds it while it writes the product."""

import torch


def build(device):
    x = torch.randn(4096, 1024, device=device, dtype=torch.bfloat16)
    w = torch.randn(1024, 4096, device=device, dtype=torch.bfloat16)
    bias = torch.randn(4096, device=device, dtype=torch.bfloat16)

    def step():
        return torch.addmm(bias, x, w)

    return step
