"""One product of all rows."""

import torch


def build(device):
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    whole = torch.randn(40 * 512, 8192, device=device, dtype=torch.bfloat16)
    w = torch.randn(8192, 512, device=device, dtype=torch.bfloat16)

    def step():
        return x @ x, (whole @ w).split(512)

    return step
