"""The same answers, with the adapters added to the weights once."""

import torch
import torch.nn.functional as F

LAYERS, WIDTH, RANK, TOKENS = 24, 1024, 16, 256


def build(device):
    def table(*shape):
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) * 0.02

    weights = [table(WIDTH, WIDTH) for _ in range(LAYERS)]
    for weight in weights:
        down, up = table(RANK, WIDTH), table(WIDTH, RANK)
        weight += (up @ down) * 2.0
    words = table(TOKENS, WIDTH)

    @torch.no_grad()
    def step():
        x = words
        for weight in weights:
            x = x + F.silu(F.linear(x, weight))
        return x

    return step
