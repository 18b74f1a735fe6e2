"""The same kernel with a block that leaves room for many."""

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
        softplus_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024, num_warps=4)
        return out

    return step
