"""Denoising diffusion of flowers: a U-Net with attention, a trainer, and an average of its weights."""

import copy
import itertools
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
SIZE, BATCH, SIDE, DIM, MULTIPLES, TIMES, HEADS = (
    (8, 2, 16, 8, (1, 2), 20, 2) if TINY else (512, 16, 128, 64, (1, 2, 4, 8), 1000, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = "bfloat16" in FIX
layout = torch.channels_last if "channels-last" in FIX else torch.contiguous_format
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g, self.scale = nn.Parameter(torch.ones(1, dim, 1, 1)), dim**0.5

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * self.scale


class Block(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(enter, leave, 3, padding=1), RMSNorm(leave)

    def forward(self, x, scale_shift=None):
        x = self.norm(self.proj(x))
        if scale_shift is not None:
            scale, shift = scale_shift
            x = x * (scale + 1) + shift
        return F.silu(x)


class ResnetBlock(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(4 * DIM, 2 * leave))
        self.block1, self.block2 = Block(enter, leave), Block(leave, leave)
        self.res = nn.Conv2d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, x, when):
        scale_shift = self.mlp(when)[:, :, None, None].chunk(2, 1)
        return self.block2(self.block1(x, scale_shift)) + self.res(x)


class Attention(nn.Module):
    """Of all places with each other, or linear in their number."""

    def __init__(self, dim, linear):
        super().__init__()
        self.norm, self.linear = RMSNorm(dim), linear
        self.qkv, self.out = nn.Conv2d(dim, 3 * HEADS * 32, 1, bias=False), nn.Conv2d(HEADS * 32, dim, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, HEADS, 32)).unbind(1)
        if self.linear:
            context = torch.einsum("bhdn,bhen->bhde", k.softmax(3), v)
            y = torch.einsum("bhde,bhdn->bhen", context, q.softmax(2) * 32**-0.5)
        else:
            y = F.scaled_dot_product_attention(*(one.transpose(2, 3) for one in (q, k, v))).transpose(2, 3)
        return x + self.out(y.flatten(1, 2).unflatten(2, x.shape[2:]))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [DIM, *(DIM * times for times in MULTIPLES)]
        self.first = nn.Conv2d(3, DIM, 7, padding=3)
        self.time = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, 4 * DIM))
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        pairs, last = list(itertools.pairwise(dims)), len(MULTIPLES) - 1
        for i, (enter, leave) in enumerate(pairs):
            shrink = nn.Conv2d(enter, leave, 3, padding=1) if i == last else nn.Conv2d(enter, leave, 4, 2, 1)
            parts = [
                ResnetBlock(enter, enter),
                ResnetBlock(enter, enter),
                Attention(enter, i != last),
                shrink,
            ]
            self.downs.append(nn.ModuleList(parts))
        middle = dims[-1]
        self.middle1, self.middle2 = ResnetBlock(middle, middle), ResnetBlock(middle, middle)
        self.attention = Attention(middle, False)
        for i, (enter, leave) in reversed(list(enumerate(pairs))):
            grow = nn.Conv2d(leave, enter, 3, padding=1)
            parts = [
                ResnetBlock(leave + enter, leave),
                ResnetBlock(leave + enter, leave),
                Attention(leave, i != last),
                grow if i == 0 else nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), grow),
            ]
            self.ups.append(nn.ModuleList(parts))
        self.last, self.out = ResnetBlock(2 * DIM, DIM), nn.Conv2d(DIM, 3, 1)

    def forward(self, x, t):
        waves = torch.exp(-math.log(10000) / (DIM // 2 - 1) * torch.arange(DIM // 2, device=x.device))
        waves = t[:, None] * waves
        when = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        x = first = self.first(x)
        kept = []
        for block1, block2, attention, shrink in self.downs:
            x = block1(x, when)
            kept.append(x)
            x = attention(block2(x, when))
            kept.append(x)
            x = shrink(x)
        x = self.middle2(self.attention(self.middle1(x, when)), when)
        for block1, block2, attention, grow in self.ups:
            if x.shape[2] != kept[-1].shape[2]:
                x = x[:, :, : kept[-1].shape[2], : kept[-1].shape[3]]
            x = block1(torch.cat([x, kept.pop()], 1), when)
            x = grow(attention(block2(torch.cat([x, kept.pop()], 1), when)))
        return self.out(self.last(torch.cat([x, first], 1), when))


class Diffusion(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        steps = torch.arange(TIMES + 1, dtype=torch.float64) / TIMES
        bars = torch.cos((steps + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - bars[1:] / bars[:-1]).clamp(0, 0.999)
        kept = torch.cumprod(1 - betas, 0)
        self.register_buffer("signal", kept.sqrt().float())
        self.register_buffer("noise", (1 - kept).sqrt().float())

    def forward(self, images):
        t = torch.randint(0, TIMES, (len(images),), device=images.device)
        noise = torch.randn_like(images)
        signal, more = self.signal[t, None, None, None], self.noise[t, None, None, None]
        noisy = (signal * images + more * noise).contiguous(memory_format=layout)
        with torch.autocast(device.type, torch.bfloat16, enabled=low and device.type == "cuda"):
            found = self.model(noisy, t)
        return F.mse_loss(found.float(), signal * noise - more * images)


class Trainer:
    def __init__(self, diffusion, images):
        self.diffusion, self.images = diffusion, images
        self.optimizer = torch.optim.Adam(
            diffusion.parameters(), lr=8e-5, betas=(0.9, 0.99), fused=device.type == "cuda"
        )
        self.average = copy.deepcopy(diffusion).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for old, new in zip(self.average.parameters(), self.diffusion.parameters(), strict=True):
            old.lerp_(new, 0.005)

    def train(self):
        lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
        for step in range(STEPS):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            chosen = torch.randint(SIZE, (BATCH,), device=device)
            loss = self.diffusion(self.images[chosen])
            loss.backward()
            nn.utils.clip_grad_norm_(self.diffusion.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % 10 == 0:
                self.follow()
            if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
                shown = loss.item()
            if step % 10 == 0:
                print(f"loss: {shown:.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        return shown, 1e3 * (time.perf_counter() - began) / (STEPS - lead)


with device:
    petals = torch.linspace(-3, 3, SIDE)
    colours = torch.rand(SIZE, 3, 1, 1)
    images = torch.sin(petals[:, None] * 8 * colours) * torch.cos(petals * 6 * colours)
    unet = Unet().to(memory_format=layout)
trainer = Trainer(Diffusion(unet).to(device), images)
loss, each = trainer.train()
print(f"loss {loss:.5f}; {each:.3f} ms per step")
