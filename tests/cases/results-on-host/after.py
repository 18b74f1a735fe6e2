"""The same, scored outside of the recorded steps, as a program does it every fiftieth step."""

import torch


def build(device):
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 32),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(32, 40, 256, device=device)
    y = torch.randint(0, 32, (32, 40), device=device)

    def step():
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step
