"""Products of 512 rows: each is limited by arithmetic, and too small to fill the device."""

import torch


def build(device):
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    parts = [torch.randn(512, 8192, device=device, dtype=torch.bfloat16) for _ in range(40)]
    w = torch.randn(8192, 512, device=device, dtype=torch.bfloat16)

    def step():
        return x @ x, [part @ w for part in parts]

    return step
