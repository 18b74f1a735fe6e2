"""Draw pictures with a latent diffusion model: DDIM with classifier-free guidance, eight prompts at once."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
BATCHES = int(os.environ.get("STEPS", 2 if TINY else 30))
PROMPTS, SIZE, WIDTH, INFERENCE_STEPS, GUIDANCE = (1, 16, 32, 3, 7.5) if TINY else (8, 64, 320, 50, 7.5)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(42)


class ResBlock(nn.Module):
    def __init__(self, a, b, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, a), nn.Conv2d(a, b, 3, padding=1)
        self.emb = nn.Linear(emb, b)
        self.norm2, self.conv2 = nn.GroupNorm(32, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class CrossAttention(nn.Module):
    def __init__(self, dim, context=768, heads=8):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.q, self.kv = nn.Linear(dim, dim, bias=False), nn.Linear(context, 2 * dim, bias=False)
        self.own = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x, context):
        b, c, h, w = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        tokens = tokens + self.attend(self.q(tokens), *self.own(tokens).chunk(2, -1))
        tokens = tokens + self.attend(self.q(tokens), *self.kv(context).chunk(2, -1))
        return x + self.out(tokens).transpose(1, 2).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        w, emb = WIDTH, WIDTH * 4
        self.time = nn.Sequential(nn.Linear(w, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.enter = nn.Conv2d(4, w, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(w, w, emb), ResBlock(w, 2 * w, emb), ResBlock(2 * w, 4 * w, emb)])
        self.attention = nn.ModuleList([CrossAttention(2 * w), CrossAttention(4 * w), CrossAttention(w)])
        self.middle = ResBlock(4 * w, 4 * w, emb)
        self.up = nn.ModuleList(
            [ResBlock(8 * w, 2 * w, emb), ResBlock(4 * w, w, emb), ResBlock(2 * w, w, emb)]
        )
        self.leave = nn.Sequential(nn.GroupNorm(32, w), nn.SiLU(), nn.Conv2d(w, 4, 3, padding=1))

    def forward(self, x, t, context):
        frequencies = torch.exp(torch.arange(WIDTH // 2, device=x.device) * -math.log(1e4) / (WIDTH // 2))
        angles = t[:, None] * frequencies
        emb = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        a = self.down[0](self.enter(x), emb)
        b = self.attention[0](self.down[1](F.avg_pool2d(a, 2), emb), context)
        c = self.attention[1](self.down[2](F.avg_pool2d(b, 2), emb), context)
        c = self.up[0](torch.cat([self.middle(c, emb), c], 1), emb)
        b = self.up[1](torch.cat([F.interpolate(c, scale_factor=2), b], 1), emb)
        b = self.attention[2](b, context)
        return self.leave(self.up[2](torch.cat([F.interpolate(b, scale_factor=2), a], 1), emb))


class DDIM:
    def __init__(self):
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=device) ** 2
        self.alphas = torch.cumprod(1 - betas, 0)
        self.timesteps = torch.linspace(999, 0, INFERENCE_STEPS, device=device).long()
        if "schedule-on-cpu" in FIX:
            self.alphas = self.alphas.cpu()

    def step(self, noise, t, x):
        alpha, previous = self.alphas[t].item(), self.alphas[max(t - 1000 // INFERENCE_STEPS, 0)].item()
        original = (x - math.sqrt(1 - alpha) * noise) / math.sqrt(alpha)
        return math.sqrt(previous) * original + math.sqrt(1 - previous) * noise


dtype = torch.bfloat16 if "bf16" in FIX else torch.float32
unet = UNet().to(device, dtype).eval()
decoder = nn.Sequential(
    nn.Conv2d(4, 128, 3, padding=1),
    nn.SiLU(),
    nn.Upsample(scale_factor=4),
    nn.Conv2d(128, 64, 3, padding=1),
    nn.SiLU(),
    nn.Upsample(scale_factor=2),
    nn.Conv2d(64, 3, 3, padding=1),
).to(device, dtype)
scheduler = DDIM()
timesteps = scheduler.timesteps.tolist() if "schedule-on-cpu" in FIX else scheduler.timesteps
empty = torch.randn(1, 77, 768, device=device, dtype=dtype)


@torch.no_grad()
def sample(prompts):
    x = torch.randn(len(prompts), 4, SIZE, SIZE, device=device, dtype=dtype)
    uncond = empty.expand(len(prompts), -1, -1)
    for t in timesteps:
        now = torch.full((len(prompts),), float(t), device=device)
        if "one-pass" in FIX:
            both = unet(torch.cat([x, x]), torch.cat([now, now]), torch.cat([prompts, uncond]))
            noise_cond, noise_uncond = both.chunk(2)
        else:
            noise_cond = unet(x, now, prompts)
            noise_uncond = unet(x, now, uncond)
        noise = noise_uncond + GUIDANCE * (noise_cond - noise_uncond)
        x = scheduler.step(noise, int(t), x)
    pictures = decoder(x / 0.18).clamp(-1, 1)
    return ((pictures.float() + 1) * 127.5).byte().permute(0, 2, 3, 1).cpu().numpy()


times = []
for batch in range(BATCHES):
    prompts = torch.randn(PROMPTS, 77, 768, device=device, dtype=dtype)
    start = time.perf_counter()
    pictures = sample(prompts)
    times.append(time.perf_counter() - start)
    rate = INFERENCE_STEPS / times[-1]
    print(f"batch {batch}: {len(pictures)} pictures in {times[-1]:.2f} s, {rate:.1f} it/s")
mean = sum(times[1:]) / len(times[1:])
print(f"average {mean / INFERENCE_STEPS * 1e3:.3f} ms per denoising step, {mean:.3f} s per batch")
