"""A batch is copied from ordinary memory: the copy is staged, slow, and the host waits for it."""

import torch


def build(device):
    batch = torch.randn(64, 3, 224, 224)
    w = torch.randn(3 * 224 * 224, 64, device=device)

    def step():
        return batch.to(device).flatten(1) @ w

    return step
