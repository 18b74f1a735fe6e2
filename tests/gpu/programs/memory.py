"""Programs whose memory is known, and what each step took of it by torch's own counters.

    python tests/gpu/programs/memory.py PROGRAM [--fix FIX] [--batch N] [--steps N] [--truth FILE]

PROGRAM: train, compiled, checkpoint, generate, leak, full (runs out of memory), keeps (its gradients),
pairwise (one large temporary), ragged (lengths that differ). FILE gets one JSON document.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, LENGTH, DIM, LAYERS, HEADS = 32_000, 512, 512, 6, 8
WARM = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x)


class Decoder(nn.Module):
    """A step of generation: a cache that grows by concatenation, and starts anew after 200 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(LAYERS))
        self.cache: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * LAYERS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, qkv in enumerate(self.qkv):
            q, k, v = qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            known = self.cache[layer]
            if known is not None and known[0].shape[2] < 200:
                k, v = torch.cat((known[0], k), 2), torch.cat((known[1], v), 2)
            self.cache[layer] = k, v
            x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return x


def training(program: str, fix: str, batch: int) -> Callable[[int], None]:
    """A step of training, told its number."""
    model = Model(checkpointing="checkpoint" in (program, fix)).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if fix == "fused" else None)
    run = torch.compile(model) if program == "compiled" else model
    kept: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(0)

    def step(number: int) -> None:
        length = LENGTH
        if program == "ragged":
            length = int(torch.randint(128, 2 * LENGTH, (), generator=generator))
        size = batch if program != "full" else batch + 4 * max(0, number - 120)
        tokens = torch.randint(VOCABULARY, (size, length + 1)).to("cuda")
        logits = run(tokens[:, :-1])
        scores = logits if fix == "logits" else logits.float()
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        if program == "leak" and fix != "leak":
            kept.append(logits.detach().mean(-1).repeat(1, 512))
        optimizer.zero_grad(set_to_none=program != "keeps" or fix == "none")
        loss.backward()
        optimizer.step()

    step.parts = {  # type: ignore[attr-defined]
        "parameters": lambda: sum(p.nbytes for p in model.parameters()),
        "gradients": lambda: sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer state": lambda: sum(
            v.nbytes for s in optimizer.state.values() for v in s.values() if v.is_cuda
        ),
    }
    return step


def generating(batch: int) -> Callable[[int], None]:
    model = Decoder().to("cuda", torch.bfloat16).eval()
    x = torch.randn(batch, 1, DIM, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step(number: int) -> None:
        model(x)

    step.parts = {"parameters": lambda: sum(p.nbytes for p in model.parameters())}  # type: ignore[attr-defined]
    return step


def comparing(fix: str, batch: int) -> Callable[[int], None]:
    """Distances between all pairs; the broadcast difference is the largest thing in the step."""
    model = nn.Linear(64, 64).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256 * batch, 64, device="cuda")

    def step(number: int) -> None:
        optimizer.zero_grad()
        y = model(x)
        with torch.no_grad():
            near = torch.cdist(y, y) if fix == "cdist" else (y[:, None] - y[None]).pow(2).sum(-1).sqrt()
        (y * near.mean(1, keepdim=True)).sum().backward()
        optimizer.step()

    step.parts = {"parameters": lambda: sum(p.nbytes for p in model.parameters())}  # type: ignore[attr-defined]
    return step


def counters() -> dict[str, int]:
    counts = torch.cuda.memory_stats()
    kinds = ("requested", "allocated", "reserved")
    return {kind: int(counts[f"{kind}_bytes.all.peak"]) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--fix", default="")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--truth", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.program == "full":
        torch.cuda.set_per_process_memory_fraction(0.1)
    if given.program == "generate":
        step = generating(given.batch)
    elif given.program == "pairwise":
        step = comparing(given.fix, given.batch)
    else:
        step = training(given.program, given.fix, given.batch)
    steps: list[dict[str, int]] = []
    times: list[float] = []
    try:
        for number in range(given.steps):
            began = time.perf_counter()
            torch.cuda.reset_peak_memory_stats()
            step(number)
            steps.append(counters())
            times.append(time.perf_counter() - began)
    finally:
        torch.cuda.synchronize()
        parts = {name: int(count()) for name, count in step.parts.items()}  # type: ignore[attr-defined]
        counts = torch.cuda.memory_stats()
        done = {
            "steps": steps,
            "parts": parts,
            "seconds": sorted(times[WARM:])[len(times[WARM:]) // 2] if len(times) > WARM else None,
            "retries": counts["num_alloc_retries"],
            "failures": counts["num_ooms"],
            "now": {
                kind: counts[f"{kind}_bytes.all.current"] for kind in ("requested", "allocated", "reserved")
            },
        }
        if given.truth:
            given.truth.write_text(json.dumps(done))


if __name__ == "__main__":
    main()
