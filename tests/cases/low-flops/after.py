"""One product of 4096 rows."""

import torch


def build(device):
    whole = torch.randn(8 * 512, 8192, device=device, dtype=torch.bfloat16)
    w = torch.randn(8192, 512, device=device, dtype=torch.bfloat16)

    def step():
        return (whole @ w).split(512)

    return step
