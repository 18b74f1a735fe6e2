"""What lives for ever is frozen out of the collector's sight, and the cycle is not made."""

import gc

import torch

RECORD = {"gc_info": True, "with_stack": True}


class Node:
    pass


def build(device):
    x = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    keep = [[i] for i in range(400_000)]
    gc.freeze()

    def step():
        for _ in range(20_000):
            Node()
        return x @ x, len(keep)

    return step
