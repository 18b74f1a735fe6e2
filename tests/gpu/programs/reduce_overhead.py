"""A compiled training step under reduce-overhead, whose graphs Inductor captures; GRAPHS=0 compiles alone."""

import os

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    mode = "reduce-overhead" if os.environ.get("GRAPHS", "1") == "1" else "default"
    layers = [module for _ in range(6) for module in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
    model = torch.compile(nn.Sequential(*layers).cuda(), mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, loss = torch.randn(64, 512, device="cuda"), torch.zeros(())
    for _ in range(int(os.environ.get("STEPS", "400"))):
        torch.compiler.cudagraph_mark_step_begin()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", round(float(loss), 4))


main()
