"""Every step makes objects that refer to each other, so Python's collector stops the step to find them."""

import gc

import torch

RECORD = {"gc_info": True, "with_stack": True}


class Node:
    def __init__(self):
        self.me = self


def build(device):
    x = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    keep = [[i] for i in range(400_000)]

    def step():
        for _ in range(20_000):
            Node()
        gc.collect()
        return x @ x, len(keep)

    return step
