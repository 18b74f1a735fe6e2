"""The bias of addmm is a full matrix: it is copied into the output before the product is added to it."""

import torch


def build(device):
    x = torch.randn(4096, 1024, device=device, dtype=torch.bfloat16)
    w = torch.randn(1024, 4096, device=device, dtype=torch.bfloat16)
    bias = torch.randn(4096, device=device, dtype=torch.bfloat16).expand(4096, 4096).contiguous()

    def step():
        return torch.addmm(bias, x, w)

    return step
