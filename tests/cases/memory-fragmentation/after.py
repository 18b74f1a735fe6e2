"""Lengths are padded to one size, whose hole fits the next."""

import torch

RECORD = {"memory": True, "fresh_process": True}
LENGTHS = [*[183] * 20]


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
