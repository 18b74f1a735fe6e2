"""cuDNN's LSTM runs over the whole sequence."""

import torch

INPUTS, WIDTH, SERIES, LENGTH = 16, 128, 64, 32


def build(device):
    net, head = (
        torch.nn.LSTM(INPUTS, WIDTH, batch_first=True).to(device),
        torch.nn.Linear(WIDTH, 1).to(device),
    )
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], fused=True)
    series, target = (
        torch.randn(SERIES, LENGTH, INPUTS, device=device),
        torch.randn(SERIES, LENGTH, device=device),
    )

    def step():
        forecast = head(net(series)[0]).squeeze(-1)
        torch.nn.functional.mse_loss(forecast, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
