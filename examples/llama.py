"""A small Llama-like model, trained or generating; nothing is downloaded.

python llama.py                          # train, eager
python llama.py --compile                # train, torch.compile
python llama.py --compile --optimizer    # ... the optimizer's step compiled too
python llama.py --generate               # greedy decoding, one sequence: host-bound
python llama.py --dim 1024 --layers 8 --batch 8 --length 512 --dtype bfloat16   # a GPU's worth
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return (x.float() * scale).to(x.dtype) * self.weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of (batch, heads, length, size)."""
    half = x.shape[-1] // 2
    frequencies = 10000 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 4 * dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(dim), Attention(dim, heads)
        self.mlp_norm, self.mlp = RMSNorm(dim), MLP(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary: int = 1000, dim: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(model: nn.Module, vocabulary: int, options: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    update = torch.compile(optimizer.step) if options.compile and options.optimizer else optimizer.step
    tokens = torch.randint(vocabulary, (options.batch, options.length + 1), device=options.device)
    loss = torch.zeros(())
    for _ in range(options.steps):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        update()
    print(f"loss {loss.item():.4f} after {options.steps} steps")


@torch.no_grad()
def generate(model: nn.Module, vocabulary: int, options: argparse.Namespace) -> None:
    tokens = torch.randint(vocabulary, (1, options.length), device=options.device)
    for _ in range(options.steps):
        logits = model(tokens[:, -options.length :])
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    print(f"generated {options.steps} tokens, the last is {int(tokens[0, -1])}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generate", action="store_true", help="decode instead of train")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mode", default=None, help="torch.compile's mode")
    parser.add_argument(
        "--optimizer", action="store_true", help="with --compile: compile the optimizer's step too"
    )
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    model: nn.Module = Llama(options.vocabulary, options.dim, options.layers, options.heads)
    model = model.to(options.device, getattr(torch, options.dtype))
    if options.compile:
        model = torch.compile(model, mode=options.mode)
    (generate if options.generate else train)(model, options.vocabulary, options)


if __name__ == "__main__":
    main()
