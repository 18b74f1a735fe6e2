"""RMS norms of six kernels each, inside a graph."""

import torch

RECORD = {"schedule": False, "active": 20}


def norm(x, weight):
    y = x.float()
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def build(device):
    weights = [torch.randn(2048, 2048, device=device, dtype=torch.bfloat16) / 45 for _ in range(16)]
    scale = torch.ones(2048, device=device, dtype=torch.bfloat16)
    x = torch.randn(32, 2048, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def layers():
        y = x
        for weight in weights:
            y = norm(y, scale) @ weight
        return y

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        layers()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()

    def step():
        with torch.profiler.record_function("execute_context_0(0)_generation_32(32)"):
            graph.replay()

    return step
