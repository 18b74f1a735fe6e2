"""Every step is as long as the longest, in the same memory."""

import torch

RECORD = {"memory": True, "fresh_process": True}
ROOM = 5 << 30  # bytes that the program may take
ROWS = 8192 + 128 * 100


def build(device):
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        x = torch.randn(ROWS, 4096, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
