"""The next step is scheduled while the device works on this one."""

import time

import torch

RECORD = {"schedule": False, "active": 20}


def build(device):
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(24))).to(device, torch.bfloat16)
    x = torch.randn(8, 2048, device=device, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        tokens = model(x).argmax(-1)

    def schedule():
        with torch.profiler.record_function("schedule"):
            until = time.perf_counter() + 3e-4
            while time.perf_counter() < until:
                pass

    def step():
        with torch.profiler.record_function("execute_context_0(0)_generation_8(8)"):
            graph.replay()
            schedule()
            tokens.tolist()

    return step
