"""Without it the model is one graph; fullgraph=True keeps it so."""

import torch

RECORD = {"fresh_process": True, "compile_log": True}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 256)
        self.second = torch.nn.Linear(256, 256)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return torch.relu(self.second(h))


def build(device):
    model = torch.compile(torch.nn.Sequential(*(Block() for _ in range(4))).to(device), fullgraph=True)
    x = torch.randn(64, 256, device=device)

    @torch.no_grad()
    def step():
        return model(x)

    return step
