"""Sample pictures from a diffusion model, guided by the gradient of a classifier of noisy pictures."""

import math
import os
import time

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
BATCH, SIZE, WIDTH, CLASSES = (2, 16, 16, 10) if TINY else (32, 64, 192, 1000)
SCALE = 4.0
dev = th.device("cuda" if th.cuda.is_available() else "cpu")
th.manual_seed(0)


def timestep_embedding(t, dim):
    freqs = th.exp(-math.log(10_000) * th.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return th.cat([th.cos(args), th.sin(args)], 1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, emb):
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.emb = nn.Linear(emb, 2 * outputs)
        self.norm = nn.GroupNorm(8, outputs)
        self.out_layers = nn.Sequential(nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, emb):
        h = self.in_layers(x)
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, 1)
        return self.skip(x) + self.out_layers(self.norm(h) * (1 + scale) + shift)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(8, channels), nn.Conv1d(channels, 3 * channels, 1)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x, emb):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x).flatten(2)).view(b, 3, 4, c // 4, h * w).transpose(-1, -2)
        y = F.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        return x + self.proj(y.transpose(-1, -2).reshape(b, c, -1)).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, width, outputs, up=True):
        super().__init__()
        self.width, emb = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(CLASSES, emb)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        levels = [width, 2 * width, 3 * width]
        self.down, self.up, kept, here = nn.ModuleList(), nn.ModuleList(), [], width
        for level in levels:
            attend = Attention(level) if level == levels[-1] else None
            blocks = [ResBlock(here, level, emb), ResBlock(level, level, emb), attend]
            self.down.append(nn.ModuleList(one for one in blocks if one))
            kept.append(level)
            here = level
        self.middle = nn.ModuleList([ResBlock(here, here, emb), Attention(here), ResBlock(here, here, emb)])
        for level in reversed(levels) if up else ():
            self.up.append(
                nn.ModuleList([ResBlock(here + kept.pop(), level, emb), ResBlock(level, level, emb)])
            )
            here = level
        self.norm, self.last = nn.GroupNorm(8, here), nn.Conv2d(here, outputs, 3, padding=1)

    def forward(self, x, t, y=None):
        emb = self.time(timestep_embedding(t, self.width))
        emb = emb if y is None else emb + self.label(y)
        h, kept = self.first(x), []
        for place, blocks in enumerate(self.down):
            h = F.avg_pool2d(h, 2) if place else h
            for block in blocks:
                h = block(h, emb)
            kept.append(h)
        for block in self.middle:
            h = block(h, emb)
        for place, blocks in enumerate(self.up):
            h = F.interpolate(h, scale_factor=2.0, mode="nearest") if place else h
            h = th.cat([h, kept.pop()], 1)
            for block in blocks:
                h = block(h, emb)
        h = self.last(F.silu(self.norm(h)))
        return h if len(self.up) else h.mean((2, 3))


betas = np.linspace(1e-4, 0.02, 1000)
alphas_cumprod = np.cumprod(1 - betas)
previous = np.append(1.0, alphas_cumprod[:-1])
TABLES = {
    "recip": np.sqrt(1 / alphas_cumprod), "recipm1": np.sqrt(1 / alphas_cumprod - 1),
    "coef1": betas * np.sqrt(previous) / (1 - alphas_cumprod),
    "coef2": (1 - previous) * np.sqrt(1 - betas) / (1 - alphas_cumprod),
    "variance": betas * (1 - previous) / (1 - alphas_cumprod),
    "log_variance": np.log(np.append(betas[1], (betas * (1 - previous) / (1 - alphas_cumprod))[1:])),
}  # fmt: skip
RESIDENT = {key: th.from_numpy(value).float().to(dev) for key, value in TABLES.items()}


def extract(name, t):
    """Take a coefficient of each picture's time out of a table, shaped to be broadcast."""
    if "resident-tables" in FIX:
        return RESIDENT[name][t].view(-1, 1, 1, 1)
    return th.from_numpy(TABLES[name]).to(device=t.device)[t].float()[:, None, None, None]


def cond_fn(classifier, x, t, y):
    with th.enable_grad():
        x_in = x.detach().requires_grad_(True)
        log_probs = F.log_softmax(classifier(x_in, t).float(), dim=-1)
        selected = log_probs[range(len(y)), y.view(-1)]
        return th.autograd.grad(selected.sum(), x_in)[0] * SCALE


def p_sample(model, classifier, x, t, y):
    with th.autocast(dev.type, th.bfloat16, enabled="half" in FIX):
        eps = model(x, t, y).float()
        gradient = cond_fn(classifier, x, t, y)
    x0 = (extract("recip", t) * x - extract("recipm1", t) * eps).clamp(-1, 1)
    mean = extract("coef1", t) * x0 + extract("coef2", t) * x
    mean = mean + extract("variance", t) * gradient.float()
    nonzero = (t != 0).float().view(-1, 1, 1, 1)
    return mean + nonzero * th.exp(0.5 * extract("log_variance", t)) * th.randn_like(x)


model, classifier = UNet(WIDTH, 3).to(dev).eval(), UNet(WIDTH // 2, CLASSES, up=False).to(dev).eval()
x, y = th.randn(BATCH, 3, SIZE, SIZE, device=dev), th.randint(0, CLASSES, (BATCH,), device=dev)
warm = max(1, STEPS // 6)
with th.no_grad():
    for i, time_step in enumerate(np.linspace(999, 0, STEPS).round().astype(int)):
        if i == warm:
            if dev.type == "cuda":
                th.cuda.synchronize()
            start = time.time()
        x = p_sample(model, classifier, x, th.tensor([time_step] * BATCH, device=dev), y)
sample = ((x + 1) * 127.5).clamp(0, 255).to(th.uint8).permute(0, 2, 3, 1).cpu().numpy()
spent = time.time() - start
print(
    f"created {len(sample)} samples, mean {sample.mean():.2f}, "
    f"{spent / (STEPS - warm):.6f} s per denoising step"
)
