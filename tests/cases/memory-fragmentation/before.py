"""Lengths grow, so that no hole of the last fits the next."""

import torch

RECORD = {"memory": True, "fresh_process": True}
LENGTHS = [*range(31, 191, 8)]


def build(device):
    kept = []

    def step():
        kept.clear()
        torch.cuda.empty_cache()
        for length in LENGTHS:
            passing = torch.empty(length << 20, device=device, dtype=torch.uint8)
            kept.append(torch.empty(11 << 20, device=device, dtype=torch.uint8))
            del passing

    return step
