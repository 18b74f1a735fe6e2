"""Each step has another number of rows, and each number compiles the function again."""

import torch

RECORD = {
    "fresh_process": True,
    "compile_log": True,
    "warmup": 1,
    "schedule_warmup": 0,
    "active": 2,
    "measure": "recorded",
}


def build(device):
    x = torch.randn(4096, 256, device=device)
    state = {"rows": 8}

    @torch.compile(dynamic=False)
    def scaled(x):
        return torch.relu(x) * 2.0

    def step():
        state["rows"] += 8
        return scaled(x[: state["rows"]])

    return step
