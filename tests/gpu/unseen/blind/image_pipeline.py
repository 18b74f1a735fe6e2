"""Four pictures a prompt: a pipeline of a diffusion transformer, a scheduler and a decoder."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
CALLS = int(os.environ.get("STEPS", 3 if TINY else 30))
DIM, DEPTH, LATENT, STEPS, IMAGES = (64, 2, 8, 4, 1) if TINY else (512, 8, 64, 20, 4)
CHANNELS = (32, 32, 32, 32) if TINY else (512, 512, 256, 128)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
half = torch.float16 if device.type == "cuda" else torch.bfloat16
torch.manual_seed(8)


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(DIM, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU("tanh"), nn.Linear(4 * DIM, DIM))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).unflatten(-1, (3, DIM // 64, 64)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.proj(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.out = nn.Conv2d(4, DIM, 2, 2), nn.Linear(DIM, 16)
        self.places = nn.Parameter(torch.randn(1, (LATENT // 2) ** 2, DIM) * 0.02)
        self.text, self.time = nn.Linear(768, DIM), nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))

    def forward(self, latents, t, text):
        angles = t.float()[:, None] * torch.exp(
            -math.log(10000) * torch.arange(DIM // 2, device=t.device) / (DIM // 2)
        )
        condition = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(text.dtype)) + self.text(text)
        x = self.patch(latents).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        x = self.out(x).unflatten(1, (LATENT // 2, LATENT // 2)).unflatten(-1, (4, 2, 2))
        return x.permute(0, 3, 1, 4, 2, 5).reshape(len(x), 4, LATENT, LATENT)


class ResnetBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, a, eps=1e-6), nn.Conv2d(a, b, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, b, eps=1e-6), nn.Conv2d(b, b, 3, padding=1)
        self.shortcut = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Upsample(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(4, CHANNELS[0], 3, padding=1), ResnetBlock(CHANNELS[0], CHANNELS[0])]
        for i, (a, b) in enumerate(zip((CHANNELS[0], *CHANNELS), CHANNELS, strict=False)):
            layers += [ResnetBlock(a, b), ResnetBlock(b, b), ResnetBlock(b, b)]
            layers += [Upsample(b, b, 3, padding=1)] if i < 3 else []
        end = [nn.GroupNorm(32, CHANNELS[-1]), nn.SiLU(), nn.Conv2d(CHANNELS[-1], 3, 3, padding=1)]
        super().__init__(*layers, *end)


class MultistepScheduler:
    """DPM-Solver++ of second order."""

    def set_timesteps(self, count):
        self.timesteps = torch.linspace(999, 0, count, device=device).round()
        self.alphas = torch.cos(self.timesteps / 1000 * math.pi / 2).clamp(1e-3, 1)
        self.sigmas = (1 - self.alphas**2).sqrt().clamp(1e-3, 1)
        self.places = {t: i for i, t in enumerate(self.timesteps.tolist())}
        self.previous = None

    def index_for_timestep(self, t):
        return (self.timesteps == t).nonzero().item()

    def step(self, noise, t, sample, index=None):
        i = self.index_for_timestep(t) if index is None else index
        j = min(i + 1, len(self.timesteps) - 1)
        x0 = (sample - self.sigmas[i] * noise) / self.alphas[i]
        x0, self.previous = (1.5 * x0 - 0.5 * self.previous if self.previous is not None else x0), x0
        h = torch.log(self.alphas[j] / self.sigmas[j]) - torch.log(self.alphas[i] / self.sigmas[i])
        return (self.sigmas[j] / self.sigmas[i]) * sample - self.alphas[j] * torch.expm1(-h) * x0


class Pipeline:
    def __init__(self, transformer, decoder, scheduler):
        self.transformer, self.scheduler = transformer.to(device, half).eval(), scheduler
        self.decoder = decoder.to(device).eval()  # float32: half overflows here
        if "decoder-bf16" in FIX:
            self.decoder.to(torch.bfloat16, memory_format=torch.channels_last)

    def decode(self, latents):
        weight = self.decoder[0].weight
        image = self.decoder((latents / 0.18).to(weight.dtype)).float()
        return (image / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1)

    @torch.inference_mode()
    def __call__(self, prompt, negative, guidance=5.0):
        text = torch.cat([negative.expand(IMAGES, -1), prompt.expand(IMAGES, -1)]).to(device, half)
        latents = torch.randn(IMAGES, 4, LATENT, LATENT, device=device)
        self.scheduler.set_timesteps(STEPS)
        for index, t in enumerate(self.scheduler.timesteps):
            both = torch.cat([latents] * 2).to(half)
            without, given = self.transformer(both, t.expand(len(both)), text).float().chunk(2)
            noise = without + guidance * (given - without)
            latents = self.scheduler.step(noise, t, latents, index if "index-on-host" in FIX else None)
        return self.decode(latents).cpu().numpy()


pipe = Pipeline(Transformer(), Decoder(), MultistepScheduler())
prompts, times = torch.randn(CALLS, 1, 768), []
for call in range(CALLS):
    start = time.perf_counter()
    images = pipe(prompts[call], torch.zeros(1, 768))
    times.append(time.perf_counter() - start)
    print(f"prompt {call}: {images.shape[0]} pictures, mean {images.mean():.2f}, {times[-1]:.3f} s")
times = times[max(1, CALLS // 5) :]
print(f"mean {sum(times) / len(times):.6f} s per prompt")
