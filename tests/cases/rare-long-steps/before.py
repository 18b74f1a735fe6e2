"""Every twentieth step collects garbage and empties the allocator's cache, as notebooks do that ran out of
memory once."""

import gc

import torch


def build(device):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(512, 1024, device=device)
    keep = [[number] for number in range(1_000_000)]  # a data set of Python objects
    steps = [0]

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        steps[0] += 1
        if steps[0] % 20 == 0:
            gc.collect()
            if x.is_cuda:
                torch.cuda.empty_cache()
        return loss, len(keep)

    return step
