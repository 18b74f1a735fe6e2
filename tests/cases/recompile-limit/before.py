"""Ten sizes, each compiled for itself: at the limit of eight the compiler gives the function up."""

import torch

RECORD = {"fresh_process": True, "compile_log": True, "warmup": 10}


def build(device):
    x = torch.randn(16384, 4096, device=device, dtype=torch.bfloat16)
    state = {"rows": 8192}

    @torch.compile(dynamic=False)
    def activation(x):
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x * x * x)))

    def step():
        state["rows"] = 8192 + (state["rows"] + 8) % 4096
        return activation(x[: state["rows"]])

    return step
