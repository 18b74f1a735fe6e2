"""A GAN: the generator's backward pass computes gradients of the discriminator's weights, too."""

import torch
from torch import nn

RECORD = {"updates": [["Adam", 10], ["Adam", 10]]}


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU())


def build(device):
    discriminator = nn.Sequential(
        down(3, 128), down(128, 256), down(256, 512), down(512, 1024), nn.Conv2d(1024, 1, 4)
    ).to(device)
    generator = nn.Sequential(
        nn.ConvTranspose2d(100, 1024, 4), up(1024, 512), up(512, 256), up(256, 128), up(128, 3)
    ).to(device)
    steps_d = torch.optim.Adam(discriminator.parameters(), 2e-4, fused=True)
    steps_g = torch.optim.Adam(generator.parameters(), 2e-4, fused=True)
    real = torch.randn(128, 3, 64, 64, device=device)
    loss = nn.functional.softplus

    def step():
        fake = generator(torch.randn(128, 100, 1, 1, device=device))
        discriminator.zero_grad()
        (loss(-discriminator(real)).mean() + loss(discriminator(fake.detach())).mean()).backward()
        steps_d.step()
        generator.zero_grad()
        loss(-discriminator(fake)).mean().backward()
        steps_g.step()

    return step
