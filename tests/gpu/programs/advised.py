"""Small programs, each of which a finding has advice for that one of our commands can try.

python advised.py CASE
"""

from __future__ import annotations

import sys

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def size(on_gpu: int) -> int:
    return on_gpu if GPU else max(8, on_gpu // 64)


class Narrow(nn.Module):
    """Deep and narrow: each launch takes longer than its kernel."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(24)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Gelu(nn.Module):
    """GELU written out: eight kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


class Products(nn.Module):
    """A batch of small products, compiled: the library's kernel is taken as it comes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.randn(count, 32, 32) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.bmm(x, self.b)
        return x


class Fused(nn.Module):
    """CUDA graphs want their inputs at fixed addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(1.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a * b + c + self.bias


class Columns(nn.Module):
    """Sums along the far dimension: one reduction is nearly all of the step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(x) * self.weight).sum(0)


def case(name: str) -> tuple[nn.Module, list[torch.Tensor], torch.dtype]:
    n = size(8192)
    if name == "narrow":
        return Narrow(), [torch.randn(8, 256)], torch.bfloat16
    if name == "gelu":
        return Gelu(), [torch.randn(n, n)], torch.bfloat16
    if name == "float32":
        return nn.Linear(size(4096), size(4096)), [torch.randn(size(4096), size(4096))], torch.float32
    if name == "products":
        return torch.compile(Products(n)), [torch.randn(n, 32, 32)], torch.bfloat16
    if name == "inputs":
        return torch.compile(Fused(), mode="reduce-overhead"), [torch.randn(n, n)] * 3, torch.float32
    if name == "columns":
        return torch.compile(Columns(size(1024))), [torch.randn(size(1 << 18), size(1024))], torch.float32
    raise SystemExit(f"no case {name!r}")


def main() -> None:
    model, inputs, dtype = case(sys.argv[1])
    model = model.to(DEVICE, dtype)
    inputs = [x.to(DEVICE, dtype) for x in inputs]
    with torch.no_grad():
        for _ in range(3000 if sys.argv[1] == "narrow" else 300):
            torch.compiler.cudagraph_mark_step_begin()
            model(*inputs)
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
