"""Cut in pieces, it is one kernel of several."""

import torch


def build(device):
    x = torch.rand(8, 1 << 20, device=device)
    w = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)

    def step():
        within = x.view(8, 1024, 1024).cumsum(-1)
        before = within[..., -1].cumsum(-1) - within[..., -1]
        return (within + before[..., None]).view(8, -1), torch.softmax(w @ w, dim=-1)

    return step
