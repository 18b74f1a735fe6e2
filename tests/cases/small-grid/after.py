"""The rows are cut in pieces of 1024, summed apart, and the pieces' totals are added."""

import torch


def build(device):
    x = torch.rand(8, 1 << 20, device=device)

    def step():
        within = x.view(8, 1024, 1024).cumsum(-1)
        before = within[..., -1].cumsum(-1) - within[..., -1]
        return (within + before[..., None]).view(8, -1)

    return step
