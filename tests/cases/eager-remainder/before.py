"""The loss is computed outside of the compiled model, eagerly, on large tensors."""

import torch


def loss_of(h, target):
    difference = (h.float() - target.float()) * 0.5
    return (difference.abs() + difference * difference).clamp(max=10.0).mean()


def build(device):
    model = torch.compile(torch.nn.Linear(1024, 8192).to(device, torch.bfloat16))
    x = torch.randn(8192, 1024, device=device, dtype=torch.bfloat16)
    target = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        return loss_of(model(x), target)

    return step
