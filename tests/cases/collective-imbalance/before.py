"""Tokens are routed to experts unevenly: rank 0 keeps almost all of them."""

import torch
import torch.distributed as dist

RECORD = {"ranks": 2}


def build(device):
    w = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    x = torch.randn(16384, 2048, device=device, dtype=torch.bfloat16)
    to = [14336, 2048]

    def step():
        received = torch.empty(2 * to[dist.get_rank()], 2048, device=device, dtype=torch.bfloat16)
        dist.all_to_all_single(received, x, [to[dist.get_rank()]] * 2, to)
        for _ in range(8):
            received = received @ w
        back = torch.empty_like(x)
        dist.all_to_all_single(back, received, to, [to[dist.get_rank()]] * 2)
        return back

    return step
