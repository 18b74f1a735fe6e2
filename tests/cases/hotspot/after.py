"""A vocabulary a sixth as large: the work is spread."""

import torch


def build(device):
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    big = torch.randn(8192, 4096, device=device, dtype=torch.bfloat16)
    w = torch.randn(8192, 1024, device=device, dtype=torch.bfloat16)

    def step():
        logits = x @ big
        return logits[:, :1024] + x @ w, torch.sort(logits[:512]).values

    return step
