"""float32 weights, cast to bfloat16 at each use."""

import torch


def build(device):
    weights = [torch.randn(8192, 8192, device=device) for _ in range(6)]
    x = torch.randn(512, 8192, device=device, dtype=torch.bfloat16)

    def step():
        h = x
        for w in weights:
            h = h @ w.to(torch.bfloat16)
        return h

    return step
