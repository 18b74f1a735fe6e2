"""A compiled function that brings its inputs to the CPU: reduce-overhead cannot record it as a CUDA graph."""

import torch


@torch.compile(mode="reduce-overhead")
def total(x, y):
    return (x.cpu() * 2).sum() + y.cpu().sum()


x, y = torch.randn(1024, device="cuda"), torch.randn(1024, device="cuda")
for _ in range(40):
    total(x, y)
