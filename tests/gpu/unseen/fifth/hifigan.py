"""A vocoder in the manner of HiFi-GAN: a generator, five discriminators by period and three by scale."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 12))
BATCH, SEGMENT, MELS, CHANNELS, D_WIDTH = (1, 1024, 20, 16, 4) if TINY else (16, 8192, 80, 512, 32)
RATES, KERNELS, DILATIONS = (8, 8, 2, 2), (3, 7, 11), (1, 3, 5)
N_FFT, HOP, RATE, SLOPE = 1024, 256, 22050, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def conv(a, b, k, stride=1, dilation=1, groups=1):
    padding = (k * dilation - dilation) // 2
    return weight_norm(nn.Conv1d(a, b, k, stride, padding, dilation, groups))


class ResBlock(nn.Module):
    def __init__(self, channels, k):
        super().__init__()
        self.convs1 = nn.ModuleList(conv(channels, channels, k, dilation=d) for d in DILATIONS)
        self.convs2 = nn.ModuleList(conv(channels, channels, k) for _ in DILATIONS)

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2, strict=True):
            xt = c1(F.leaky_relu(x, SLOPE))
            x = c2(F.leaky_relu(xt, SLOPE)) + x
        return x


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_pre = conv(MELS, CHANNELS, 7)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for i, u in enumerate(RATES):
            a = CHANNELS // 2**i
            self.ups.append(weight_norm(nn.ConvTranspose1d(a, a // 2, 2 * u, u, padding=u // 2)))
            self.resblocks.append(nn.ModuleList(ResBlock(a // 2, k) for k in KERNELS))
        self.conv_post = conv(CHANNELS // 2 ** len(RATES), 1, 7)

    def forward(self, x):
        x = self.conv_pre(x)
        for up, blocks in zip(self.ups, self.resblocks, strict=True):
            x = up(F.leaky_relu(x, SLOPE))
            xs = blocks[0](x)
            for block in blocks[1:]:
                xs = xs + block(x)
            x = xs / len(blocks)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class DiscriminatorP(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period, w = period, D_WIDTH
        sizes = [1, w, 4 * w, 16 * w, 32 * w, 32 * w]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3 if i < 4 else 1, 1), padding=(2, 0)))
            for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.conv_post = weight_norm(nn.Conv2d(32 * w, 1, (3, 1), 1, padding=(1, 0)))

    def forward(self, x):
        fmap = []
        b, c, t = x.shape
        if t % self.period:
            n_pad = self.period - t % self.period
            x, t = F.pad(x, (0, n_pad), "reflect"), t + n_pad
        x = x.view(b, c, t // self.period, self.period)
        for layer in self.convs:
            x = F.leaky_relu(layer(x), SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class DiscriminatorS(nn.Module):
    def __init__(self, pools):
        super().__init__()
        self.pools, w = pools, 4 * D_WIDTH
        self.convs = nn.ModuleList(
            [
                conv(1, w, 15),
                conv(w, w, 41, 2, groups=4),
                conv(w, 2 * w, 41, 2, groups=16),
                conv(2 * w, 4 * w, 41, 4, groups=16),
                conv(4 * w, 8 * w, 41, 4, groups=16),
                conv(8 * w, 8 * w, 41, 1, groups=16),
                conv(8 * w, 8 * w, 5),
            ]
        )
        self.conv_post = conv(8 * w, 1, 3)

    def forward(self, x):
        fmap = []
        for _ in range(self.pools):
            x = F.avg_pool1d(x, 4, 2, padding=2)
        for layer in self.convs:
            x = F.leaky_relu(layer(x), SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class Discriminators(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.discriminators = nn.ModuleList(members)

    def forward(self, y, y_hat, together=False):
        y_d_rs, y_d_gs, fmap_rs, fmap_gs = [], [], [], []
        for d in self.discriminators:
            if together:
                y_d, fmap = d(torch.cat([y, y_hat]))
                (y_d_r, y_d_g), pairs = y_d.chunk(2), [one.chunk(2) for one in fmap]
                fmap_r, fmap_g = [one[0] for one in pairs], [one[1] for one in pairs]
            elif "discriminators-frozen" in FIX and y_hat.requires_grad:
                with torch.no_grad():
                    y_d_r, fmap_r = d(y)
                y_d_g, fmap_g = d(y_hat)
            else:
                y_d_r, fmap_r = d(y)
                y_d_g, fmap_g = d(y_hat)
            y_d_rs.append(y_d_r)
            fmap_rs.append(fmap_r)
            y_d_gs.append(y_d_g)
            fmap_gs.append(fmap_g)
        return y_d_rs, y_d_gs, fmap_rs, fmap_gs


def feature_loss(fmap_r, fmap_g):
    loss = 0
    for dr, dg in zip(fmap_r, fmap_g, strict=True):
        for rl, gl in zip(dr, dg, strict=True):
            loss += torch.mean(torch.abs(rl - gl))
    return loss * 2


def discriminator_loss(reals, fakes):
    loss = 0
    for dr, dg in zip(reals, fakes, strict=True):
        loss += torch.mean((1 - dr) ** 2) + torch.mean(dg**2)
    return loss


def generator_loss(outputs):
    return sum(torch.mean((1 - dg) ** 2) for dg in outputs)


def mel_filters():
    """Triangles, evenly spaced on the mel scale."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    up = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(up, down))).float()


mel_basis, hann_window = mel_filters().to(device), torch.hann_window(N_FFT).to(device)


def mel_spectrogram(y):
    y = F.pad(y, ((N_FFT - HOP) // 2, (N_FFT - HOP) // 2), "reflect").squeeze(1)
    spec = torch.stft(y, N_FFT, HOP, window=hann_window, center=False, return_complex=True)
    spec = torch.sqrt(spec.real**2 + spec.imag**2 + 1e-9)
    return torch.log(torch.clamp(mel_basis @ spec, min=1e-5))


def speech(size):
    """Harmonics of a pitch that wanders."""
    pitch = 120 + 60 * torch.rand(size, 1)
    phase = torch.cumsum(2 * np.pi * pitch / RATE * (1 + 0.01 * torch.randn(size, SEGMENT).cumsum(1) / 90), 1)
    return sum(torch.sin(k * phase) / k for k in range(1, 8)).unsqueeze(1) * 0.2


generator = Generator().to(device)
mpd = Discriminators(DiscriminatorP(p) for p in (2, 3, 5, 7, 11)).to(device)
msd = Discriminators(DiscriminatorS(pools) for pools in range(3)).to(device)
optim_g = torch.optim.AdamW(generator.parameters(), 2e-4, betas=(0.8, 0.99))
optim_d = torch.optim.AdamW([*msd.parameters(), *mpd.parameters()], 2e-4, betas=(0.8, 0.99))
sounds = speech(4 * BATCH).to(device)
times = []
for steps in range(STEPS):
    start_b = time.time()
    y = sounds[torch.randint(0, len(sounds), (BATCH,)).to(device)]
    y_mel = mel_spectrogram(y)
    y_g_hat = generator(y_mel)
    y_g_hat_mel = mel_spectrogram(y_g_hat)

    optim_d.zero_grad()
    together = "real-and-fake-together" in FIX
    y_df_r, y_df_g, _, _ = mpd(y, y_g_hat.detach(), together)
    y_ds_r, y_ds_g, _, _ = msd(y, y_g_hat.detach(), together)
    loss_disc_all = discriminator_loss(y_df_r, y_df_g) + discriminator_loss(y_ds_r, y_ds_g)
    loss_disc_all.backward()
    optim_d.step()

    optim_g.zero_grad()
    if "discriminators-frozen" in FIX:
        mpd.requires_grad_(False)
        msd.requires_grad_(False)
    loss_mel = F.l1_loss(y_mel, y_g_hat_mel) * 45
    y_df_r, y_df_g, fmap_f_r, fmap_f_g = mpd(y, y_g_hat)
    y_ds_r, y_ds_g, fmap_s_r, fmap_s_g = msd(y, y_g_hat)
    loss_fm = feature_loss(fmap_f_r, fmap_f_g) + feature_loss(fmap_s_r, fmap_s_g)
    loss_gen_all = generator_loss(y_df_g) + generator_loss(y_ds_g) + loss_fm + loss_mel
    loss_gen_all.backward()
    optim_g.step()
    if "discriminators-frozen" in FIX:
        mpd.requires_grad_(True)
        msd.requires_grad_(True)

    mel_error = F.l1_loss(y_mel, y_g_hat_mel).item()
    times.append(time.time() - start_b)
    if steps % 5 == 0:
        print(
            f"Steps : {steps:d}, Gen Loss Total : {loss_gen_all.item():4.3f}, "
            f"Mel-Spec. Error : {mel_error:4.3f}, s/b : {times[-1]:4.3f}"
        )
kept = times[min(STEPS // 2, 4) :]
print(f"generator {loss_gen_all.item():.4f}, discriminator {loss_disc_all.item():.4f}")
print(f"mean s/b : {sum(kept) / len(kept):.5f}")
