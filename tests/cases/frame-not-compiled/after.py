"""The line is logged after the loop, outside of the compiled function."""

import os

import torch

RECORD = {"fresh_process": True, "compile_log": True}


@torch.compile
def layers(x, scales):
    for scale in scales:
        x = torch.nn.functional.silu(x * scale) + torch.tanh(x) * 0.5
    return x


def build(device):
    x = torch.randn(4096, 4096, device=device)

    @torch.no_grad()
    def step():
        scales = (0.9, 1.0, 1.1)
        y = layers(x, scales)
        with open(os.devnull, "w") as log:
            print(scales, file=log)
        return y

    return step
