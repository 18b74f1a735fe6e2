"""A StyleGAN2 for 64x64 faces: modulated convolutions, non-saturating loss, R1 every 16th iteration, EMA."""

import copy
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
ITER = int(os.environ.get("STEPS", 4 if TINY else 64))
SIZE, BATCH, STYLE = (16, 2, 16) if TINY else (64, 32, 512)
CHANNELS = dict.fromkeys((4, 8, 16, 32), 16 if TINY else 512) | {64: 256}
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class EqualLinear(nn.Module):
    def __init__(self, inputs, outputs, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.full((outputs,), bias))
        self.scale = 1 / math.sqrt(inputs)

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias)


class ModulatedConv2d(nn.Module):
    def __init__(self, inputs, outputs, kernel, demodulate=True, upsample=False):
        super().__init__()
        self.kernel, self.outputs, self.demodulate, self.upsample = kernel, outputs, demodulate, upsample
        self.scale = 1 / math.sqrt(inputs * kernel**2)
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, kernel, kernel))
        self.modulation = EqualLinear(STYLE, inputs, 1.0)

    def forward(self, x, style):
        batch, inputs = x.shape[:2]
        style = self.modulation(style)
        if self.upsample:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        if "scale-activations" in FIX:
            weight = self.scale * self.weight[0]
            y = F.conv2d(x * style[:, :, None, None], weight, padding=self.kernel // 2)
            if self.demodulate:
                demod = torch.rsqrt(style.pow(2) @ weight.pow(2).sum((2, 3)).t() + 1e-8)
                y = y * demod[:, :, None, None]
            return y
        weight = self.scale * self.weight * style.view(batch, 1, inputs, 1, 1)
        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
            weight = weight * demod.view(batch, self.outputs, 1, 1, 1)
        weight = weight.view(batch * self.outputs, inputs, self.kernel, self.kernel)
        x = x.reshape(1, batch * inputs, *x.shape[2:])
        y = F.conv2d(x, weight, padding=self.kernel // 2, groups=batch)
        return y.view(batch, self.outputs, *y.shape[2:])


class StyledConv(nn.Module):
    def __init__(self, inputs, outputs, upsample=False):
        super().__init__()
        self.conv = ModulatedConv2d(inputs, outputs, 3, upsample=upsample)
        self.noise = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(1, outputs, 1, 1))

    def forward(self, x, style):
        y = self.conv(x, style)
        y = y + self.noise * y.new_empty(len(y), 1, *y.shape[2:]).normal_() + self.bias
        return F.leaky_relu(y, 0.2) * 2**0.5


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.mapping = nn.ModuleList(EqualLinear(STYLE, STYLE) for _ in range(4))
        self.start = nn.Parameter(torch.randn(1, CHANNELS[4], 4, 4))
        self.first, self.convs, self.to_rgb = (
            StyledConv(CHANNELS[4], CHANNELS[4]),
            nn.ModuleList(),
            nn.ModuleList(),
        )
        self.rgb = ModulatedConv2d(CHANNELS[4], 3, 1, demodulate=False)
        for level in range(3, int(math.log2(SIZE)) + 1):
            before, here = CHANNELS[2 ** (level - 1)], CHANNELS[2**level]
            self.convs.append(nn.ModuleList([StyledConv(before, here, True), StyledConv(here, here)]))
            self.to_rgb.append(ModulatedConv2d(here, 3, 1, demodulate=False))

    def forward(self, z):
        w = z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8)
        for layer in self.mapping:
            w = F.leaky_relu(layer(w), 0.2)
        x = self.first(self.start.expand(len(z), -1, -1, -1), w)
        picture = self.rgb(x, w)
        for (up, conv), to_rgb in zip(self.convs, self.to_rgb, strict=True):
            x = conv(up(x, w), w)
            picture = to_rgb(x, w) + F.interpolate(picture, scale_factor=2, mode="bilinear")
        return picture


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, size = [nn.Conv2d(3, CHANNELS[SIZE], 1), nn.LeakyReLU(0.2)], SIZE
        while size > 4:
            here, after = CHANNELS[size], CHANNELS[size // 2]
            layers += [nn.Conv2d(here, here, 3, padding=1), nn.LeakyReLU(0.2)]
            layers += [nn.Conv2d(here, after, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)]
            size //= 2
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS[4] * 16, 1))

    def forward(self, x):
        return self.net(x)


def requires_grad(model, flag):
    for parameter in model.parameters():
        parameter.requires_grad = flag


def accumulate(average, model, decay=0.999):
    ours, theirs = list(average.parameters()), list(model.parameters())
    if "foreach-ema" in FIX:
        torch._foreach_lerp_([one.data for one in ours], [one.data for one in theirs], 1 - decay)
        return
    for one, other in zip(ours, theirs, strict=True):
        one.data.mul_(decay).add_(other.data, alpha=1 - decay)


generator, discriminator = Generator().to(device), Discriminator().to(device)
ema = copy.deepcopy(generator).eval()
g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3 * 16 / 17, betas=(0.0, 0.99**0.94))
faces = torch.rand(BATCH * 8, 3, SIZE, SIZE, device=device) * 2 - 1
warm = ITER // 4
for i in range(ITER):
    if i == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.time()
    real = faces[torch.randint(0, len(faces), (BATCH,), device=device)]
    requires_grad(generator, False)
    requires_grad(discriminator, True)
    fake = generator(torch.randn(BATCH, STYLE, device=device))
    d_loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
    discriminator.zero_grad()
    d_loss.backward()
    d_optim.step()
    if i % 16 == 0:
        real.requires_grad = True
        (gradient,) = torch.autograd.grad(discriminator(real).sum(), real, create_graph=True)
        discriminator.zero_grad()
        (10 / 2 * gradient.pow(2).flatten(1).sum(1).mean() * 16).backward()
        d_optim.step()
    requires_grad(generator, True)
    requires_grad(discriminator, False)
    g_loss = F.softplus(-discriminator(generator(torch.randn(BATCH, STYLE, device=device)))).mean()
    generator.zero_grad()
    g_loss.backward()
    g_optim.step()
    accumulate(ema, generator)
    if i % 20 == 0:
        print(f"d: {d_loss.item():.4f}; g: {g_loss.item():.4f}")
final = g_loss.item()
print(f"g: {final:.4f}; {(time.time() - start) / (ITER - warm):.6f} sec/iter")
