"""1100 tokens run in a batch that is padded to 2048."""

import torch

RECORD = {"schedule": False, "active": 20}
ASKED, SIZES = 1100, (1024, 2048)


def build(device):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(12))).to(device, torch.bfloat16)
    size = next(size for size in SIZES if size >= ASKED)
    x = torch.zeros(size, 4096, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        with torch.profiler.record_function(f"execute_context_0(0)_generation_{ASKED}({ASKED})"):
            return model(x)

    return step
