"""A Triton kernel with so large a block that each thread holds hundreds of registers and few threads fit."""

import torch
import triton
import triton.language as tl


@triton.jit
def softplus_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    acc = value
    for _ in range(4):
        acc = acc + tl.log(1.0 + tl.exp(acc * 0.5 - value))
    tl.store(out + at, acc, mask=at < n)


def build(device):
    x = torch.randn(1 << 26, device=device)
    out = torch.empty_like(x)

    def step():
        softplus_kernel[(triton.cdiv(x.numel(), 8192),)](x, out, x.numel(), BLOCK=8192, num_warps=2)
        return out

    return step
