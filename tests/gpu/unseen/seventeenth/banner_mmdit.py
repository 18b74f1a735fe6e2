"""Banners from words: a pipeline with a transformer that sees words and picture together, with guidance."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 84))  # of denoising
BATCH, SIDE, CHANNELS, TEXT, SPOKEN, WIDE, LAYERS, HEAD, PLAN = (
    (1, 8, 4, 6, 16, 32, 1, 16, 3) if TINY else (2, 128, 16, 154, 2048, 1024, 8, 64, 28)
)
GUIDANCE = 5.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


class Stream(nn.Module):
    """One half of a block: what words, or the picture, have for themselves."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDE, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU("tanh"), nn.Linear(4 * WIDE, WIDE))
        self.change = nn.Sequential(nn.SiLU(), nn.Linear(WIDE, 6 * WIDE))

    def begin(self, x, given):
        shift, scale, *self.rest = self.change(given)[:, None].chunk(6, 2)
        return self.qkv(self.norm1(x) * (1 + scale) + shift).unflatten(2, (3, -1, HEAD))

    def end(self, x, seen):
        gate1, shift, scale, gate2 = self.rest
        x = x + gate1 * self.out(seen)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale) + shift)


class Joint(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.picture = Stream(), Stream()

    def forward(self, words, picture, given):
        both = torch.cat([self.words.begin(words, given), self.picture.begin(picture, given)], 1)
        q, k, v = both.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        length = words.shape[1]
        return self.words.end(words, seen[:, :length]), self.picture.end(picture, seen[:, length:])


class MMDiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(CHANNELS, WIDE, 2, 2)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // 2) ** 2, WIDE))
        self.read, self.whole = nn.Linear(SPOKEN, WIDE), nn.Linear(SPOKEN, WIDE)
        self.when = nn.Sequential(nn.Linear(256, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.blocks = nn.ModuleList(Joint() for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(WIDE), nn.Linear(WIDE, 4 * CHANNELS)

    def forward(self, latents, t, spoken):
        angles = 1000 * t * torch.exp(-9.2 * torch.arange(128, device=t.device) / 128)
        when = torch.cat([angles.cos(), angles.sin()]).to(latents.dtype)[None]
        given = self.when(when) + self.whole(spoken.mean(1))
        picture = self.enter(latents).flatten(2).transpose(1, 2) + self.places
        words = self.read(spoken)
        for block in self.blocks:
            words, picture = block(words, picture, given)
        x = self.last(self.norm(picture)).transpose(1, 2).unflatten(2, (SIDE // 2, SIDE // 2))
        return F.pixel_shuffle(x, 2)


class Scheduler:
    """Euler's steps along a straight line, later ones shorter."""

    def __init__(self, shift=3.0):
        times = torch.linspace(1, 0, PLAN + 1)
        self.times = (shift * times / (1 + (shift - 1) * times)).tolist()

    def step(self, velocity, index, latents):
        return latents + (self.times[index + 1] - self.times[index]) * velocity


class Pipeline:
    def __init__(self, transformer, scheduler, encoded):
        self.transformer, self.scheduler, self.encoded = transformer, scheduler, encoded
        self.dtype = next(transformer.parameters()).dtype
        self.latents = None

    def prepare(self, number):
        """Noise, and what the text encoders made of the words and of no words."""
        noise = torch.randn(BATCH, CHANNELS, SIDE, SIDE, device=device)
        self.latents = noise.to(self.dtype)
        asked = self.encoded[1 + number % (len(self.encoded) - 1)].expand(BATCH, -1, -1)
        self.spoken = torch.cat([self.encoded[:1].expand(BATCH, -1, -1), asked]).to(self.dtype)

    @torch.no_grad()
    def denoise(self, index):
        t = torch.tensor([self.scheduler.times[index]], device=device)
        found = self.transformer(self.latents.repeat(2, 1, 1, 1), t, self.spoken)
        without, with_words = found.float().chunk(2)
        velocity = without + GUIDANCE * (with_words - without)
        self.latents = self.scheduler.step(velocity, index, self.latents.float()).to(self.dtype)


def main():
    with device:
        transformer = MMDiT().eval()
        for weight in transformer.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, 0, 0.02)
        encoded = torch.randn(5, TEXT, SPOKEN)
    if "bfloat16" in FIX:
        transformer.to(torch.bfloat16)
    pipeline = Pipeline(transformer, Scheduler(), encoded)
    lead, began, spread = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % PLAN == 0:
            pipeline.prepare(step // PLAN)
        pipeline.denoise(step % PLAN)
        if "spread-rarely" not in FIX or step % PLAN == PLAN - 1 or step == STEPS - 1:
            spread = pipeline.latents.float().std().item()
        if step % PLAN == PLAN - 1:
            print(f"banner {step // PLAN}: spread {spread:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.5f}; {each:.3f} ms per step")


main()
