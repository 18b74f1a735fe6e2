"""Portraits from noise by a guided denoiser in a latent space, for which a gallery shows how they become."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 60))  # of denoising
BATCH, SIDE, WIDE, WORDS, SPACE, HEAD, DECODER, PLAN, EVERY = (
    (1, 8, 32, 4, 16, 8, 8, 3, 2) if TINY else (4, 64, 256, 77, 768, 64, 128, 30, 10)
)
GUIDANCE = 6.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


def norm(wide):
    return nn.GroupNorm(min(32, wide // 4), wide)


class Residual(nn.Module):
    def __init__(self, wide, out, when=0):
        super().__init__()
        self.norm1, self.conv1 = norm(wide), nn.Conv2d(wide, out, 3, 1, 1)
        self.norm2, self.conv2 = norm(out), nn.Conv2d(out, out, 3, 1, 1)
        self.when = nn.Linear(when, out) if when else None
        self.shortcut = nn.Conv2d(wide, out, 1) if wide != out else nn.Identity()

    def forward(self, x, when=None):
        y = self.conv1(F.silu(self.norm1(x)))
        if self.when is not None:
            y = y + self.when(when)[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Of places to each other, then to words."""

    def __init__(self, wide):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.q, self.kv = (
            nn.Linear(wide, 3 * wide),
            nn.Linear(wide, wide),
            nn.Linear(SPACE, 2 * wide),
        )
        self.out1, self.out2 = nn.Linear(wide, wide), nn.Linear(wide, wide)

    def forward(self, x, words):
        y = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm1(y)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = y + self.out1(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        q = self.q(self.norm2(y)).unflatten(2, (-1, HEAD)).transpose(1, 2)
        k, v = self.kv(words).unflatten(2, (2, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = y + self.out2(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y.transpose(1, 2).unflatten(2, x.shape[2:]).contiguous(memory_format=torch.channels_last)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        wides = (WIDE, 2 * WIDE, 4 * WIDE)
        self.enter, self.time = nn.Conv2d(4, WIDE, 3, 1, 1), nn.Linear(WIDE, WIDE)
        self.down, self.up, wide = nn.ModuleList(), nn.ModuleList(), WIDE
        for i, out in enumerate(wides):
            self.down.append(nn.ModuleList([Residual(wide, out, WIDE), Attention(out) if i else None]))
            wide = out
        self.middle = nn.ModuleList([Residual(wide, wide, WIDE), Attention(wide), Residual(wide, wide, WIDE)])
        for i, out in reversed(list(enumerate(wides))):
            self.up.append(nn.ModuleList([Residual(wide + out, out, WIDE), Attention(out) if i else None]))
            wide = out
        self.norm, self.last = norm(wide), nn.Conv2d(wide, 4, 3, 1, 1)

    def forward(self, x, t, words):
        rates = torch.exp(-9.2 * torch.arange(WIDE // 2, device=device) / (WIDE // 2))
        when = F.silu(self.time(torch.cat([(t * rates).cos(), (t * rates).sin()]).to(x.dtype)[None]))
        x, kept = self.enter(x), []
        for i, (residual, attention) in enumerate(self.down):
            x = residual(F.avg_pool2d(x, 2) if i else x, when)
            x = x if attention is None else attention(x, words)
            kept.append(x)
        x = self.middle[0](x, when)
        x = self.middle[2](self.middle[1](x, words), when)
        for i, (residual, attention) in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2.0) if i else x
            x = residual(torch.cat([x, kept.pop()], 1), when)
            x = x if attention is None else attention(x, words)
        return self.last(F.silu(self.norm(x)))


class Decoder(nn.Module):
    """From latents to pictures eight times as wide."""

    def __init__(self):
        super().__init__()
        layers, wide = [nn.Conv2d(4, 4 * DECODER, 3, 1, 1), Residual(4 * DECODER, 4 * DECODER)], 4 * DECODER
        for out in (4 * DECODER, 2 * DECODER, DECODER):
            layers += [Residual(wide, out), Residual(out, out), nn.Upsample(scale_factor=2.0)]
            layers += [nn.Conv2d(out, out, 3, 1, 1)]
            wide = out
        self.layers = nn.Sequential(
            *layers, Residual(wide, wide), norm(wide), nn.SiLU(), nn.Conv2d(wide, 3, 3, 1, 1)
        )

    def forward(self, x):
        return self.layers(x)


class Gallery:
    """Keeps what was shown last."""

    def __init__(self, decoder):
        self.decoder, self.shown, self.count = decoder, None, 0
        self.colours = 0.3 * torch.randn(4, 3, device=device, dtype=dtype)

    def show(self, latents, number):
        if "preview-every-tenth" in FIX and number % EVERY != EVERY - 1 and number % PLAN != PLAN - 1:
            return
        if "preview-of-latents" in FIX and number % PLAN != PLAN - 1:
            pictures = torch.einsum("bchw,cd->bdhw", latents, self.colours)
        else:
            pictures = self.decoder(latents)
        pictures = ((pictures.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        self.shown, self.count = pictures.permute(0, 2, 3, 1).cpu().numpy(), self.count + 1


@torch.no_grad()
def main():
    with device:
        unet, decoder = (
            part.to(dtype, memory_format=torch.channels_last).eval() for part in (UNet(), Decoder())
        )
    gallery = Gallery(decoder)
    words = torch.randn(
        2 * BATCH, WORDS, SPACE, device=device, dtype=dtype
    )  # the second half says what is not wanted
    noise = torch.linspace(1, 0, PLAN + 1).tolist()
    lead, began = min(STEPS // 2, 6), 0.0
    x = torch.zeros(BATCH, 4, SIDE, SIDE, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = step % PLAN
        if at == 0:
            x = torch.randn(BATCH, 4, SIDE, SIDE, device=device)
        both = x.to(dtype, memory_format=torch.channels_last).repeat(2, 1, 1, 1)
        wanted, unwanted = unet(both, 1000 * noise[at], words).float().chunk(2)
        x = x + (noise[at + 1] - noise[at]) * (unwanted + GUIDANCE * (wanted - unwanted))
        gallery.show(x.to(dtype, memory_format=torch.channels_last), step)
    spread = x.std().item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.4f}, {gallery.count} times shown; {each:.3f} ms per step")


main()
