"""Convolutions in half precision on NCHW tensors: cuDNN turns them to NHWC and back around each one."""

import torch


def build(device):
    layers = [torch.nn.Conv2d(128, 128, 3, padding=1) for _ in range(6)]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    x = torch.randn(64, 128, 56, 56, device=device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step():
        return model(x)

    return step
