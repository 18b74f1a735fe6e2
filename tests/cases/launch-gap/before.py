"""Large matrix products, a chain of tiny operations in between: the device waits for the tiny launches."""

import torch


def build(device):
    w = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    small = torch.randn(64, device=device)

    def step():
        h = x
        for _ in range(3):
            h = h @ w
            s = small
            for _ in range(125):
                s = torch.sin(s) + 0.5
            h = h * s.sum().to(h.dtype)
        return h

    return step
