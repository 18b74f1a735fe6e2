"""A * B + C, the forum thread's question: what does torch.compile make of two elementwise kernels?

python forum.py                              # two kernels
python forum.py --compile --return           # one fused kernel
python forum.py --compile --no-return        # nobody reads the result: the compiler drops the work
python forum.py --compile --return --mode max-autotune
"""

from __future__ import annotations

import argparse

import torch


def with_return(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    return A * B + C


def without_return(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> None:
    A * B + C


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--size", type=int, default=None, help="N of the N x N tensors (16000 on a GPU, 512 on a CPU)"
    )
    parser.add_argument("--return", dest="keep", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mode", default=None, help="torch.compile's mode")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default=device)
    options = parser.parse_args()

    size = options.size or (16000 if options.device.startswith("cuda") else 512)
    A, B, C = (torch.randn(size, size, device=options.device) for _ in range(3))
    fn = with_return if options.keep else without_return
    if options.compile:
        fn = torch.compile(fn, mode=options.mode)
    result = None
    for _ in range(options.steps):
        result = fn(A, B, C)
    print("nothing returned" if result is None else f"mean {result.mean().item():.4f}")


if __name__ == "__main__":
    main()
