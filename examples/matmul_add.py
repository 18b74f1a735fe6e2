"""torch.add(torch.matmul(x, w), b): the smallest program worth profiling.

Host-bound when small, device-bound when big.

python matmul_add.py --size 64              # launching a kernel costs more than running it
python matmul_add.py --size 4096            # the other way round
python matmul_add.py --size 64 --batch 8    # aten::bmm instead of aten::mm
python matmul_add.py --compile --mode max-autotune
"""

from __future__ import annotations

import argparse

import torch


def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.matmul(x, w), b)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=0, help="a batch dimension of this size (0: none)")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mode", default=None, help="torch.compile's mode")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()

    shape = (options.batch, options.size, options.size) if options.batch else (options.size, options.size)
    dtype = getattr(torch, options.dtype)
    x, w, b = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(3))
    run = torch.compile(fn, mode=options.mode) if options.compile else fn
    out = x
    for _ in range(options.warmup + options.steps):
        out = run(x, w, b)
    print(f"matmul_add {tuple(shape)} on {options.device}: mean {out.float().mean().item():.4f}")


if __name__ == "__main__":
    main()
