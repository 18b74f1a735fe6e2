"""What was behind the fence? Photographs are filled in by a latent diffusion model, guided by words."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))  # of denoising
BATCH, SIDE, WIDE, HEADS, WORDS, TEXT, PLAN = (
    (2, 8, 32, 2, 5, 16, 3) if TINY else (4, 64, 320, 8, 77, 768, 25)
)
GUIDANCE, ETA = 7.5, 0.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, wide, context):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(wide, wide), nn.Linear(context, wide), nn.Linear(context, wide)
        self.out, self.slice_size = nn.Linear(wide, wide), None

    def forward(self, x, context):
        q, k, v = (
            one.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for one in (self.q(x), self.k(context), self.v(context))
        )
        if self.slice_size is None or "fused-attention" in FIX:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = self.sliced(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view_as(q)
        return self.out(y.transpose(1, 2).flatten(2))

    def sliced(self, q, k, v):
        """A few heads at a time, for which memory is enough on any card."""
        y = torch.empty_like(q)
        for start in range(0, len(q), self.slice_size):
            part = slice(start, start + self.slice_size)
            scores = torch.bmm(q[part], k[part].transpose(1, 2)) * q.shape[2] ** -0.5
            y[part] = torch.bmm(scores.softmax(-1), v[part])
        return y


class Block(nn.Module):
    """Convolutions that know the time, then attention to the picture and to the words."""

    def __init__(self, enter, wide):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, enter), nn.Conv2d(enter, wide, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, wide), nn.Conv2d(wide, wide, 3, padding=1)
        self.time, self.skip = nn.Linear(4 * WIDE, wide), nn.Conv2d(enter, wide, 1)
        self.look, self.read = Attention(wide, wide), Attention(wide, TEXT)
        self.norms = nn.ModuleList(nn.LayerNorm(wide) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x, when, words):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(when)[:, :, None, None]
        x = self.skip(x) + self.conv2(F.silu(self.norm2(y)))
        y = x.flatten(2).transpose(1, 2)
        seen = self.norms[0](y)
        y = y + self.look(seen, seen)
        y = y + self.read(self.norms[1](y), words)
        y = y + self.mlp(self.norms[2](y))
        return y.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(9, WIDE, 3, padding=1)  # latents, what is to be filled, what is there
        self.when = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.SiLU(), nn.Linear(4 * WIDE, 4 * WIDE))
        self.down1, self.down2 = Block(WIDE, WIDE), Block(WIDE, WIDE)
        self.small = nn.Conv2d(WIDE, 2 * WIDE, 3, 2, padding=1)
        self.low1, self.low2 = Block(2 * WIDE, 2 * WIDE), Block(2 * WIDE, 2 * WIDE)
        self.large = nn.Conv2d(2 * WIDE, WIDE, 3, padding=1)
        self.up1, self.up2 = Block(2 * WIDE, WIDE), Block(2 * WIDE, WIDE)
        self.norm, self.last = nn.GroupNorm(8, WIDE), nn.Conv2d(WIDE, 4, 3, padding=1)

    def forward(self, x, t, words):
        rates = torch.exp(-9.2 * torch.arange(WIDE // 2, device=x.device) / (WIDE // 2))
        when = self.when(torch.cat([(t * rates).cos(), (t * rates).sin()]).to(x.dtype)[None])
        one = self.down1(self.enter(x), when, words)
        two = self.down2(one, when, words)
        x = self.low2(self.low1(self.small(two), when, words), when, words)
        x = self.large(F.interpolate(x, scale_factor=2.0))
        x = self.up2(torch.cat([self.up1(torch.cat([x, two], 1), when, words), one], 1), when, words)
        return self.last(F.silu(self.norm(x)))

    def enable_attention_slicing(self):
        for module in self.modules():
            if isinstance(module, Attention):
                module.slice_size = HEADS // 2


@torch.inference_mode()
def main():
    with device:
        unet = UNet().to(dtype).eval()
    unet.enable_attention_slicing()
    kept = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=device) ** 2, 0)
    times = torch.linspace(981, 1, PLAN).long().tolist()
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = step % PLAN
        if at == 0:  # other photographs
            x = torch.randn(BATCH, 4, SIDE, SIDE, device=device)
            hole = (torch.rand(BATCH, 1, SIDE, SIDE, device=device) < 0.3).float()
            there = (1 - hole) * torch.randn(BATCH, 4, SIDE, SIDE, device=device)
            words = torch.randn(2 * BATCH, WORDS, TEXT, device=device, dtype=dtype)  # without, then with
        both = torch.cat([x, hole, there], 1).repeat(2, 1, 1, 1).to(dtype)
        free, guided = unet(both, times[at], words).float().chunk(2)
        noise = free + GUIDANCE * (guided - free)
        now, then = kept[times[at]], kept[times[at + 1]] if at + 1 < PLAN else kept[0]
        clean = ((x - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-4, 4)
        x = then.sqrt() * clean + (1 - then).sqrt() * noise
        if "spread-rarely" not in FIX or step % 25 == 0 or step == STEPS - 1:
            shown = clean.std().item()
        if at == 0:
            print(f"step {step}: spread {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {shown:.4f}; {each:.3f} ms per step")


main()
