"""The device's records of the middle third never reached the file."""

import torch

RECORD = {"measure": "none", "drop_device_events": True}


def build(device):
    x = torch.randn(512, 512, device=device, dtype=torch.bfloat16)

    def step():
        for _ in range(20):
            y = x @ x
        return y

    return step
