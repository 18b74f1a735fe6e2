"""Fill holes in pictures with diffusion posterior sampling: the gradient of the misfit guides every step."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 24))  # pictures
SIZE, WIDTH, TIMESTEPS, SCALE = (16, 32, 3, 1.0) if TINY else (128, 64, 20, 1.0)
BATCH = 8 if "eight-pictures" in FIX else 1
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10_000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, a, b, emb):
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb, 2 * b))
        self.norm, self.act, self.conv = nn.GroupNorm(32, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

    def forward(self, x, emb):
        h = self.in_layers(x)
        scale, shift = self.emb_layers(emb)[..., None, None].chunk(2, 1)
        h = self.conv(self.act(self.norm(h) * (1 + scale) + shift))
        return self.skip(x) + h


class Attention(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.GroupNorm(32, ch), nn.Conv1d(ch, 3 * ch, 1), nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        h = self.qkv(self.norm(x.flatten(2)))
        q, k, v = (one.unflatten(1, (4, -1)).transpose(-1, -2) for one in h.chunk(3, 1))
        h = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).flatten(1, 2)
        return x + self.proj(h).view_as(x)


class UNet(nn.Module):
    def __init__(self, mults=(1, 2, 2, 4), blocks=2):
        super().__init__()
        emb = 4 * WIDTH
        self.time = nn.Sequential(nn.Linear(WIDTH, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.start = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.down, self.up, ch, kept = nn.ModuleList(), nn.ModuleList(), WIDTH, [WIDTH]
        for level, mult in enumerate(mults):
            for _ in range(blocks):
                self.down.append(ResBlock(ch, mult * WIDTH, emb))
                ch = mult * WIDTH
                kept.append(ch)
            if level < len(mults) - 1:
                self.down.append(nn.Conv2d(ch, ch, 3, stride=2, padding=1))
                kept.append(ch)
        self.mid = nn.ModuleList([ResBlock(ch, ch, emb), Attention(ch), ResBlock(ch, ch, emb)])
        for level, mult in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                self.up.append(ResBlock(ch + kept.pop(), mult * WIDTH, emb))
                ch = mult * WIDTH
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(32, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, WIDTH))
        h = self.start(x)
        hs = [h]
        for layer in self.down:
            h = layer(h, emb) if isinstance(layer, ResBlock) else layer(h)
            hs.append(h)
        for layer in self.mid:
            h = layer(h, emb) if isinstance(layer, ResBlock) else layer(h)
        for layer in self.up:
            h = layer(torch.cat([h, hs.pop()], 1), emb) if isinstance(layer, ResBlock) else layer(h)
        return self.out(h)


model = UNet().to(device).eval()
if "freeze" in FIX:
    model.requires_grad_(False)
alphas = torch.linspace(0.9999, 0.98, 1000).double().cumprod(0).float().to(device)
respaced = torch.linspace(999, 0, TIMESTEPS).long().tolist()


def restore(measurement, mask):
    """Ancestral sampling whose every step moves towards what was measured."""
    img = torch.randn_like(measurement)
    for place, time_step in enumerate(respaced):
        img = img.requires_grad_()
        t = torch.tensor([time_step] * len(img), device=device)
        alpha = alphas[time_step]
        before = alphas[respaced[place + 1]] if place + 1 < len(respaced) else torch.ones_like(alpha)
        eps = model(img, t)
        x0 = ((img - (1 - alpha).sqrt() * eps) / alpha.sqrt()).clamp(-1, 1)
        beta = 1 - alpha / before
        mean = (before.sqrt() * beta * x0 + (alpha / before).sqrt() * (1 - before) * img) / (1 - alpha)
        sample = mean + (beta * (1 - before) / (1 - alpha)).sqrt() * torch.randn_like(img)
        difference = measurement - mask * x0
        norm = difference.flatten(1).norm(dim=1)
        norm_grad = torch.autograd.grad(outputs=norm.sum(), inputs=img)[0]
        img = (sample - SCALE * norm_grad).detach()
        distance = norm.mean().item()  # for the progress bar
    return img, distance


pictures = torch.randn(STEPS, 3, SIZE, SIZE).clamp(-1, 1)
times, count = [], 0
for ref_img in pictures.split(BATCH):
    start = time.time()
    ref_img = ref_img.to(device)
    mask = (torch.rand(len(ref_img), 1, SIZE, SIZE, device=device) > 0.7).float()
    restored, distance = restore(ref_img * mask + 0.05 * torch.randn_like(ref_img), mask)
    result = restored.cpu().clamp(-1, 1).add(1).mul(127.5).byte().permute(0, 2, 3, 1).numpy()
    times.append((time.time() - start, len(ref_img)))
    count += len(ref_img)
    if count % 8 == 0:
        print(f"{count} pictures, distance {distance:.3f}, grey {result.mean():.1f}")
kept = times[max(1, 2 // BATCH) :] or times
print(f"{1e3 * sum(t for t, _ in kept) / sum(n for _, n in kept):.3f} ms per picture")
