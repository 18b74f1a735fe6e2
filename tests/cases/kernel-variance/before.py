"""A copy on a second stream gets in the way of every other product."""

import torch

RECORD = {"active": 8}


def build(device):
    x = torch.randn(1 << 27, device=device)
    y = torch.randn(1 << 27, device=device)
    out = torch.empty_like(x)
    other = torch.cuda.Stream()
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 2:
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                for _ in range(2):
                    y.mul_(1.0)
        torch.add(x, 1.0, out=out)
        torch.cuda.current_stream().wait_stream(other)
        return out

    return step
