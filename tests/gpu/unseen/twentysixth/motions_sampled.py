"""Motions of people drawn from noise by diffusion, as texts say, with guidance."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 600))  # of denoising
TEXTS, FRAMES, JOINTS, WIDE, LAYERS, WORDS, LONG, READ, READERS, HEAD = (
    (2, 8, 12, 32, 2, 50, 10, 32, 2, 16) if TINY else (64, 196, 263, 512, 8, 49408, 77, 768, 12, 64)
)
SCALE = 2.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, wide, causal):
        super().__init__()
        self.heads, self.causal = wide // HEAD, causal
        self.before, self.between = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x):
        batch, long, wide = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, long, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, long, wide))
        return x + self.mlp(self.between(x))


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, READ), nn.Embedding(LONG, READ)
        self.blocks = nn.Sequential(*(Block(READ, causal=True) for _ in range(READERS)))
        self.norm = nn.LayerNorm(READ)

    def forward(self, tokens):
        x = self.norm(self.blocks(self.words(tokens) + self.places.weight))
        return x[torch.arange(len(x), device=x.device), tokens.argmax(1)]  # where the text ends


class MotionDiffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.text_encoder = TextEncoder().requires_grad_(False)
        self.embed_text, self.embed_pose = nn.Linear(READ, WIDE), nn.Linear(JOINTS, WIDE)
        self.embed_time = nn.Sequential(nn.Linear(WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.places = nn.Parameter(0.02 * torch.randn(FRAMES + 1, WIDE))
        self.blocks = nn.Sequential(*(Block(WIDE, causal=False) for _ in range(LAYERS)))
        self.leave = nn.Linear(WIDE, JOINTS)

    def encode_text(self, tokens):
        return self.text_encoder(tokens)

    def forward(self, motions, times, condition):
        read = condition["read"] if "read" in condition else self.encode_text(condition["tokens"])
        read = read * condition["asked"][:, None]
        rates = torch.exp(-math.log(1e4) * torch.arange(WIDE // 2, device=times.device) / (WIDE // 2))
        waves = times[:, None] * rates
        waves = torch.cat([waves.cos(), waves.sin()], 1).to(motions.dtype)
        told = self.embed_time(waves) + self.embed_text(read)
        x = torch.cat([told[:, None], self.embed_pose(motions)], 1) + self.places
        return self.leave(self.blocks(x)[:, 1:])


def prompts():
    """Texts of a few words each, with an end that has the largest number."""
    tokens = torch.zeros(TEXTS, LONG, dtype=torch.long)
    for row in tokens:
        long = int(torch.randint(3, LONG * 2 // 5, ()))
        row[:long] = torch.randint(1, WORDS - 1, (long,))
        row[long] = WORDS - 1
    return tokens.to(device)


@torch.inference_mode()
def main():
    with device:
        model = MotionDiffusion().to(dtype).eval()
    tokens = prompts()
    asked = torch.cat([torch.ones(TEXTS, device=device), torch.zeros(TEXTS, device=device)]).to(dtype)
    condition = {"tokens": tokens.repeat(2, 1), "asked": asked}
    if "text-once" in FIX:
        condition["read"] = model.encode_text(condition["tokens"])
    kept = torch.cos(torch.linspace(0, 0.99, STEPS + 1, dtype=torch.float64) * math.pi / 2).square().tolist()
    motions = torch.randn(TEXTS, FRAMES, JOINTS, device=device)
    lead, began, spread = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        now, before = kept[STEPS - step], kept[STEPS - step - 1]
        times = torch.full((2 * TEXTS,), 1000 * (1 - step / STEPS), device=device)
        with_text, without = model(motions.repeat(2, 1, 1).to(dtype), times, condition).float().chunk(2)
        clean = without + SCALE * (with_text - without)
        alpha = now / before
        mean = clean * (before**0.5 * (1 - alpha) / (1 - now)) + motions * (
            alpha**0.5 * (1 - before) / (1 - now)
        )
        noise = ((1 - alpha) * (1 - before) / (1 - now)) ** 0.5
        motions = mean + noise * torch.randn_like(mean)
        if "progress-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            spread = motions.std().item()
        if step % 50 == 0:
            print(f"step {step} of {STEPS}: spread {spread:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.6f}, {motions.abs().mean().item():.6f}; {each:.3f} ms per step of denoising")


main()
