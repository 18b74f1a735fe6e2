"""A forecast runs an LSTM cell by cell over known inputs."""

import torch

INPUTS, WIDTH, SERIES, LENGTH = 16, 128, 64, 32


def build(device):
    net, head = torch.nn.LSTMCell(INPUTS, WIDTH).to(device), torch.nn.Linear(WIDTH, 1).to(device)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], fused=True)
    series, target = (
        torch.randn(SERIES, LENGTH, INPUTS, device=device),
        torch.randn(SERIES, LENGTH, device=device),
    )

    def step():
        state = None
        outputs = []
        for time in range(LENGTH):
            state = net(series[:, time], state)
            outputs.append(state[0])
        forecast = head(torch.stack(outputs, 1)).squeeze(-1)
        torch.nn.functional.mse_loss(forecast, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
