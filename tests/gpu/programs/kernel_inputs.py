"""A loop with an embedding, compiled, and a hand-written Triton kernel with a helper, a constant and an
autotuner."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional

SLOPE = tl.constexpr(0.1)


@triton.jit
def leaky(x):
    return tl.where(x > 0, x, x * SLOPE)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)],
    key=["n"],
)
@triton.jit
def scatter_leaky(x_ptr, index_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(index_ptr + row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask)
    tl.store(out_ptr + target * width + columns, leaky(x), mask=mask)


def main() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(32000, 1024, device="cuda")
    head = nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=1e-3)

    @torch.compile
    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return functional.silu(head(table(tokens))).square().mean()

    # Words of a language are not drawn evenly: half of these tokens are one of 50 words.
    common = torch.randint(0, 50, (8, 512), device="cuda")
    tokens = torch.cat([common, torch.randint(0, 32000, (8, 512), device="cuda")], 1)
    order = torch.randperm(8192, device="cuda")
    out = torch.empty(8192, 1024, device="cuda")
    for _ in range(40):
        optimizer.zero_grad()
        loss(tokens).backward()
        with torch.no_grad():
            rows = table.weight[:8192]
            scatter_leaky[lambda meta: (8192, triton.cdiv(1024, meta["BLOCK"]))](rows, order, out, 8192, 1024)
        optimizer.step()
    torch.cuda.synchronize()
    expected = torch.empty_like(out)
    expected[order] = functional.leaky_relu(table.weight[:8192].detach(), 0.1)
    print("the hand-written kernel is right:", torch.allclose(out, expected, atol=1e-2))


if __name__ == "__main__":
    main()
