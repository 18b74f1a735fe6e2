"""Lengths that grow with every step, in little more memory than one needs: what is cached fits nothing."""

import torch

RECORD = {"memory": True, "fresh_process": True}
ROOM = 5 << 30  # bytes that the program may take
ROWS, MORE = 8192, 128


def build(device):
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    count = 0

    def step():
        nonlocal count
        count += 1
        x = torch.randn(ROWS + MORE * count, 4096, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
