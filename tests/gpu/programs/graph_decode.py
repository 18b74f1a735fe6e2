"""Decode with graphs captured by hand, one a batch size, as small servers do; GRAPHS=0 runs them eagerly."""

import os

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int = 6, width: int = 512, words: int = 4000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).argmax(-1)


def main() -> None:
    torch.manual_seed(0)
    graphs = os.environ.get("GRAPHS", "1") == "1"
    model = Decoder().cuda().half().eval()
    sizes, captured = (4, 8, 16), {}
    with torch.no_grad():
        for size in sizes if graphs else ():
            tokens = torch.zeros(size, dtype=torch.long, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    model(tokens)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(tokens)
            captured[size] = graph, tokens, out
        total = 0
        for step in range(int(os.environ.get("STEPS", "600"))):
            size = sizes[step // 40 % 3]
            new = torch.full((size,), step % 100, dtype=torch.long, device="cuda")
            with torch.profiler.record_function("decode step"):
                if graphs:
                    graph, tokens, out = captured[size]
                    tokens.copy_(new)
                    graph.replay()
                else:
                    out = model(new)
            if step % 50 == 0:
                total += int(out.sum())
    print("total", total)


main()
