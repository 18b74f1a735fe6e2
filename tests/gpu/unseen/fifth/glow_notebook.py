# %% [markdown]
# # Glow on small pictures
# A normalizing flow (Kingma & Dhariwal 2018): blocks of *actnorm*, an invertible 1x1 convolution and an
# affine coupling. The exact likelihood is maximised.

# %%
import math
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 10))
BATCH, SIDE, FLOWS, BLOCKS, FILTERS, N_BITS = (2, 8, 2, 2, 8, 5) if TINY else (64, 32, 16, 3, 128, 5)


def seed_everything(seed=42):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False


seed_everything()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if "no-anomaly" not in FIX:
    torch.autograd.set_detect_anomaly(True)  # I had NaNs with lr = 1e-3

# %% [markdown]
# ## Layers


# %%
class ActNorm(nn.Module):
    """Scale and shift per channel, set from the first batch."""

    def __init__(self, in_channel):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, in_channel, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, in_channel, 1, 1))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))
        self.ready = False

    def initialize(self, input):
        with torch.no_grad():
            flatten = input.permute(1, 0, 2, 3).flatten(1)
            self.loc.data.copy_(-flatten.mean(1)[None, :, None, None])
            self.scale.data.copy_(1 / (flatten.std(1)[None, :, None, None] + 1e-6))

    def forward(self, input):
        ready = self.ready if "flag-in-python" in FIX else self.initialized.item() != 0
        if not ready:
            self.initialize(input)
            self.initialized.fill_(1)
            self.ready = True
        _, _, height, width = input.shape
        log_abs = torch.log(torch.abs(self.scale))
        logdet = height * width * torch.sum(log_abs)
        return self.scale * (input + self.loc), logdet


class InvConv2d(nn.Module):
    def __init__(self, in_channel):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(in_channel, in_channel))
        self.weight = nn.Parameter(q[:, :, None, None].contiguous())

    def forward(self, input):
        _, _, height, width = input.shape
        logdet = height * width * torch.slogdet(self.weight.squeeze().double())[1].float()
        return F.conv2d(input, self.weight), logdet


class ZeroConv2d(nn.Module):
    def __init__(self, in_channel, out_channel):
        super().__init__()
        self.conv = nn.Conv2d(in_channel, out_channel, 3)
        self.conv.weight.data.zero_()
        self.conv.bias.data.zero_()
        self.scale = nn.Parameter(torch.zeros(1, out_channel, 1, 1))

    def forward(self, input):
        out = self.conv(F.pad(input, [1, 1, 1, 1], value=1))
        return out * torch.exp(self.scale * 3)


class AffineCoupling(nn.Module):
    def __init__(self, in_channel):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(in_channel // 2, FILTERS, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(FILTERS, FILTERS, 1),
            nn.ReLU(inplace=True),
            ZeroConv2d(FILTERS, in_channel),
        )
        for layer in (self.net[0], self.net[2]):
            layer.weight.data.normal_(0, 0.05)
            layer.bias.data.zero_()

    def forward(self, input):
        in_a, in_b = input.chunk(2, 1)
        log_s, t = self.net(in_a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        out_b = (in_b + t) * s
        return torch.cat([in_a, out_b], 1), torch.sum(torch.log(s).view(input.shape[0], -1), 1)


class Flow(nn.Module):
    def __init__(self, in_channel):
        super().__init__()
        self.actnorm, self.invconv = ActNorm(in_channel), InvConv2d(in_channel)
        self.coupling = AffineCoupling(in_channel)

    def forward(self, input):
        out, logdet = self.actnorm(input)
        out, det1 = self.invconv(out)
        out, det2 = self.coupling(out)
        return out, logdet + det1 + det2


def gaussian_log_p(x, mean, log_sd):
    return -0.5 * math.log(2 * math.pi) - log_sd - 0.5 * (x - mean) ** 2 / torch.exp(2 * log_sd)


class Block(nn.Module):
    """Squeeze, the flows, and half of the channels out."""

    def __init__(self, in_channel, split):
        super().__init__()
        self.flows, self.split = nn.ModuleList(Flow(in_channel * 4) for _ in range(FLOWS)), split
        kept = in_channel * 2 if split else in_channel * 4
        self.prior = ZeroConv2d(kept, in_channel * 4 if split else in_channel * 8)

    def forward(self, input):
        out, logdet = F.pixel_unshuffle(input, 2), 0
        for flow in self.flows:
            out, det = flow(out)
            logdet = logdet + det
        if self.split:
            out, z_new = out.chunk(2, 1)
            mean, log_sd = self.prior(out).chunk(2, 1)
        else:
            z_new = out
            mean, log_sd = self.prior(torch.zeros_like(out)).chunk(2, 1)
        return out, logdet, gaussian_log_p(z_new, mean, log_sd).flatten(1).sum(1)


class Glow(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(3 * 2**i, i < BLOCKS - 1) for i in range(BLOCKS))

    def forward(self, out):
        log_p_sum, logdet = 0, 0
        for block in self.blocks:
            out, det, log_p = block(out)
            logdet, log_p_sum = logdet + det, log_p_sum + log_p
        return log_p_sum, logdet


# %% [markdown]
# ## Data
# Blobs of colour in five bits; noise is added so that the density is continuous.

# %%
n_bins = 2.0**N_BITS
coarse = torch.rand(16 * BATCH, 3, 4, 4)
images = (F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1) * (n_bins - 1)).round()
images = (images / n_bins - 0.5).to(device)

# %% [markdown]
# ## Training

# %%
model = Glow().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
history, times = [], []
for i in range(STEPS):
    began = time.time()
    image = images[torch.randint(0, len(images), (BATCH,)).to(device)]
    log_p, logdet = model(image + torch.rand_like(image) / n_bins)
    n_pixel = SIDE * SIDE * 3
    loss = (-(-math.log(n_bins) * n_pixel + logdet + log_p) / (math.log(2) * n_pixel)).mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    times.append(time.time() - began)
    if i % 10 == 0:
        print(f"Loss: {history[-1]:.5f}; logP: {log_p.mean().item():.2f}; logdet: {logdet.mean().item():.2f}")

# %%
kept = times[min(STEPS // 2, 3) :]
print(f"bits per dimension {history[-1]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")
