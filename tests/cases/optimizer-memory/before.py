"""The default implementation makes lists of temporaries as large as the parameters."""

import torch

RECORD = {"memory": True, "fresh_process": True}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(512, 8192), torch.nn.Linear(8192, 512)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def build(device):
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(64, 512, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
