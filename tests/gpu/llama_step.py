"""A Llama of 8 layers, 1024 wide, one training step compiled; writes each kernel's median duration in the
model."""

from __future__ import annotations

import json
import statistics
import sys

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, dim: int = 1024, layers: int = 8, heads: int = 16, words: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = RMSNorm(dim), nn.Linear(dim, words, bias=False)
        angle = torch.outer(torch.arange(2048), 10000 ** (-torch.arange(0, dim // heads, 2) / (dim // heads)))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        t = tokens.shape[1]
        x = self.embedding(tokens)
        cos, sin = self.cos[:t].to(x.dtype), self.sin[:t].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def main(out: str) -> None:
    torch.manual_seed(0)
    model = Llama().cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    tokens = torch.randint(0, 32000, (8, 1024), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(compiled(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()

    for _ in range(40):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profiler:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    durations: dict[str, list[float]] = {}
    for event in profiler.events():
        durations.setdefault(event.name, []).append(event.device_time_total)
    with open(out, "w") as file:
        json.dump(
            {name: [statistics.median(times), len(times) / 5] for name, times in durations.items()}, file
        )


if __name__ == "__main__":
    main(sys.argv[1])
