"""Wasserstein GAN with gradient penalty on 64x64 pictures: five critic steps for one of the generator."""

import os
import time

import torch
from torch import autograd, nn, optim

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
ITERS = int(os.environ.get("STEPS", 3 if TINY else 30))
BATCH, DIM, CRITIC_ITERS, LAMBDA, NOISE = (2, 4, 2, 10, 16) if TINY else (128, 64, 5, 10, 128)
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
torch.manual_seed(1)


class UpBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(a),
            nn.ReLU(True),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(True),
            nn.Conv2d(b, b, 3, padding=1),
        )
        self.skip = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 1))

    def forward(self, x):
        return self.path(x) + self.skip(x)


class DownBlock(nn.Module):
    """No batch norm here: the penalty is of each picture alone."""

    def __init__(self, a, b):
        super().__init__()
        self.path = nn.Sequential(
            nn.LeakyReLU(0.2),
            nn.Conv2d(a, a, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(a, b, 3, padding=1),
            nn.AvgPool2d(2),
        )
        self.skip = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(a, b, 1))

    def forward(self, x):
        return self.path(x) + self.skip(x)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(NOISE, 8 * DIM * 16)
        self.main = nn.Sequential(
            UpBlock(8 * DIM, 8 * DIM),
            UpBlock(8 * DIM, 4 * DIM),
            UpBlock(4 * DIM, 2 * DIM),
            UpBlock(2 * DIM, DIM),
            nn.BatchNorm2d(DIM),
            nn.ReLU(True),
            nn.Conv2d(DIM, 3, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(self.start(z).view(-1, 8 * DIM, 4, 4))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, DIM, 3, padding=1),
            DownBlock(DIM, 2 * DIM),
            DownBlock(2 * DIM, 4 * DIM),
            DownBlock(4 * DIM, 8 * DIM),
            DownBlock(8 * DIM, 8 * DIM),
        )
        self.out = nn.Linear(8 * DIM * 16, 1)

    def forward(self, x):
        return self.out(self.main(x).flatten(1)).view(-1)


def calc_gradient_penalty(netD, real_data, fake_data):
    alpha = torch.rand(BATCH, 1, 1, 1, device=device)
    interpolates = (alpha * real_data + (1 - alpha) * fake_data).requires_grad_(True)
    disc_interpolates = netD(interpolates)
    gradients = autograd.grad(
        outputs=disc_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(disc_interpolates),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


netG, netD = Generator().to(device), Critic().to(device)
if "channels-last" in FIX:
    netG, netD = (net.to(memory_format=torch.channels_last) for net in (netG, netD))
optimizerD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.0, 0.9))
optimizerG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
pictures = torch.randint(0, 256, (64 if TINY else 20_000, 3, 64, 64), dtype=torch.uint8, device=device)


def inf_train_gen():
    while True:
        order = torch.randperm(len(pictures), device=device)
        for rows in order.split(BATCH):
            if len(rows) == BATCH:
                real = pictures[rows].float() / 127.5 - 1
                yield real.contiguous(memory_format=torch.channels_last) if "channels-last" in FIX else real


gen, times = inf_train_gen(), []
for iteration in range(ITERS):
    start_time = time.time()
    for _ in range(CRITIC_ITERS):
        netD.zero_grad()
        real_data = next(gen)
        noise = torch.randn(BATCH, NOISE, device=device)
        with torch.set_grad_enabled("no-graph" not in FIX):
            fake = netG(noise)
        D_real = netD(real_data).mean()
        D_fake = netD(fake).mean()
        gradient_penalty = calc_gradient_penalty(netD, real_data.data, fake.data)
        D_cost = D_fake - D_real + gradient_penalty
        D_cost.backward()
        optimizerD.step()
    netD.requires_grad_(False)
    netG.zero_grad()
    G_cost = -netD(netG(torch.randn(BATCH, NOISE, device=device))).mean()
    G_cost.backward()
    optimizerG.step()
    netD.requires_grad_(True)
    wasserstein = (D_real - D_fake).item()
    times.append(time.time() - start_time)
    if iteration % 5 == 0:
        print(f"iter {iteration}  W {wasserstein:.3f}  D {D_cost.item():.3f}  G {G_cost.item():.3f}")

kept = times[ITERS // 4 :]
print(f"W {wasserstein:.4f}; time per iteration {sum(kept) / len(kept):.6f}")
