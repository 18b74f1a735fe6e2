"""Frames that an environment gave as arrays become a batch by way of a list."""

import numpy as np
import torch


def build(device):
    generator = np.random.default_rng(0)
    frames = [generator.random((84, 84), dtype=np.float32) for _ in range(32)]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(84 * 84, 512), torch.nn.ReLU()).to(device)

    def step():
        return net(torch.tensor(frames, device=device))

    return step
