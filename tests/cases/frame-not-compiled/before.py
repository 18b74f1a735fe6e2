"""A line is logged inside a loop: Dynamo cannot go on in the middle of one, and gives the function up."""

import os

import torch

RECORD = {"fresh_process": True, "compile_log": True}


def layers(x, scales):
    for scale in scales:
        x = torch.nn.functional.silu(x * scale) + torch.tanh(x) * 0.5
        with open(os.devnull, "w") as log:
            print(scale, file=log)
    return x


def build(device):
    compiled = torch.compile(layers)
    x = torch.randn(4096, 4096, device=device)

    @torch.no_grad()
    def step():
        return compiled(x, (0.9, 1.0, 1.1))

    return step
