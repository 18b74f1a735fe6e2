"""The bookkeeping is a table made once."""

import torch

RECORD = {"active": 2}


def build(device):
    x = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    words = [f"token{i % 997}" for i in range(40000)]
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1

    def step():
        h = x @ x
        return h @ x

    return step
