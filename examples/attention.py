"""A self-attention block as torch.compile sees it: compiled whole, broken, recompiled, refused, or trained.

python attention.py                              # one graph
python attention.py --variant print              # a print() in the middle: a graph break
python attention.py --variant data-dependent     # a branch on a tensor's value: another
python attention.py --variant recompile          # the sequence length changes: a recompilation
python attention.py --variant fullgraph-error    # a break where none is allowed: an error
python attention.py --variant backward           # a forward and a backward graph
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int = 1024) -> None:
        super().__init__()
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.W_q(x)
        k = self.W_k(x)
        v = self.W_v(x)
        out = q @ k.transpose(-2, -1)
        out = torch.exp(out) / torch.sum(torch.exp(out), dim=-1, keepdim=True)
        return out @ v


class PrintingAttention(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.W_q(x)
        print("in the middle of a graph")
        return torch.softmax(q @ self.W_k(x).transpose(-2, -1), dim=-1) @ self.W_v(x)


class BranchingAttention(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.W_q(x)
        if q.sum() > 0:
            q = q * 0.5
        return torch.softmax(q @ self.W_k(x).transpose(-2, -1), dim=-1) @ self.W_v(x)


MODULES = {
    "print": PrintingAttention,
    "data-dependent": BranchingAttention,
    "fullgraph-error": PrintingAttention,
}
VARIANTS = ["ok", "print", "data-dependent", "recompile", "fullgraph-error", "backward"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variant", choices=VARIANTS, default="ok")
    parser.add_argument("--mode", default=None, help="torch.compile's mode")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    module = MODULES.get(options.variant, Attention)(options.dim).to(options.device)
    model = module
    if not options.eager:
        model = torch.compile(module, mode=options.mode, fullgraph=options.variant == "fullgraph-error")
    lengths = [
        options.length * (1 + step % 3 if options.variant == "recompile" else 1)
        for step in range(options.steps)
    ]
    out = torch.zeros(())
    for length in lengths:
        x = torch.rand(1, length, options.dim, device=options.device)
        with torch.set_grad_enabled(options.variant == "backward"):
            out = model(x)
            if options.variant == "backward":
                out.sum().backward()
    print(f"attention {options.variant}: {tuple(out.shape)} mean {out.float().mean().item():.4f}")


if __name__ == "__main__":
    main()
