"""The tiny chain is compiled into one kernel."""

import torch


def build(device):
    w = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    small = torch.randn(64, device=device)

    @torch.compile
    def scale(s):
        for _ in range(125):
            s = torch.sin(s) + 0.5
        return s.sum()

    def step():
        h = x
        for _ in range(3):
            h = h @ w
            h = h * scale(small).to(h.dtype)
        return h

    return step
