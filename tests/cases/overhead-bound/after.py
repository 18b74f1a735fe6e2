"""The same network captured once as a CUDA graph: one launch replays all of it."""

import torch


def build(device):
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(24)]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    x = torch.randn(8, 256, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)

    def step():
        graph.replay()
        return out

    return step
