"""Eight products of 512 rows: each is large enough to be limited by arithmetic, too small to fill the device."""

import torch


def build(device):
    parts = [torch.randn(512, 8192, device=device, dtype=torch.bfloat16) for _ in range(8)]
    w = torch.randn(8192, 512, device=device, dtype=torch.bfloat16)

    def step():
        return [part @ w for part in parts]

    return step
