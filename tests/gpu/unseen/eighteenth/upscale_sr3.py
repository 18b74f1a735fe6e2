"""Faces become sharper: a diffusion model learns large pictures, given small ones."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 50))
FACES, BATCH, SIDE, SMALL, WIDTHS, HEADS, ATTENDS, BLOCKS = (
    (6, 2, 16, 4, (16, 32, 32), 2, (4, 8), 1) if TINY else (1024, 48, 64, 16, (128, 256, 512), 8, (16, 32), 2)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class SelfAttention(nn.Module):
    """Each place of a picture looks at all others."""

    def __init__(self, wide):
        super().__init__()
        self.norm = nn.GroupNorm(8, wide)
        self.qkv, self.out = nn.Conv1d(wide, 3 * wide, 1), nn.Conv1d(wide, wide, 1)

    def forward(self, x):
        y = self.qkv(self.norm(x).flatten(2))
        q, k, v = y.unflatten(1, (3, HEADS, -1)).unbind(1)
        if "fused-attention" in FIX:
            q, k, v = (one.transpose(2, 3).contiguous() for one in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        else:
            scale = q.shape[2] ** -0.25  # of each, so that products stay small in low precision
            scores = torch.einsum("bhct,bhcs->bhts", q * scale, k * scale)
            chances = torch.softmax(scores.float(), dim=-1).to(scores.dtype)
            y = torch.einsum("bhts,bhcs->bhct", chances, v)
        return x + self.out(y.flatten(1, 2)).view_as(x)


class Block(nn.Module):
    def __init__(self, enter, wide, side):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, enter), nn.Conv2d(enter, wide, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, wide), nn.Conv2d(wide, wide, 3, padding=1)
        self.noise = nn.Linear(4 * WIDTHS[0], 2 * wide)
        self.skip = nn.Conv2d(enter, wide, 1) if enter != wide else nn.Identity()
        self.look = SelfAttention(wide) if side in ATTENDS else nn.Identity()

    def forward(self, x, noise):
        scale, shift = self.noise(noise)[:, :, None, None].chunk(2, 1)
        y = self.norm2(self.conv1(F.silu(self.norm1(x)))) * (1 + scale) + shift
        return self.look(self.skip(x) + self.conv2(F.silu(y)))


class Sharpener(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(6, WIDTHS[0], 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        self.noise = nn.Sequential(
            nn.Linear(WIDTHS[0], 4 * WIDTHS[0]), nn.SiLU(), nn.Linear(4 * WIDTHS[0], 4 * WIDTHS[0])
        )
        enter, side, kept = WIDTHS[0], SIDE, [WIDTHS[0]]
        for level, wide in enumerate(WIDTHS):
            for _ in range(BLOCKS):
                self.downs.append(Block(enter, wide, side))
                enter = wide
                kept.append(wide)
            if level < len(WIDTHS) - 1:
                self.downs.append(nn.Conv2d(wide, wide, 3, 2, 1))
                kept.append(wide)
                side //= 2
        self.middle = nn.ModuleList([Block(enter, enter, side), Block(enter, enter, 0)])
        for level, wide in reversed(list(enumerate(WIDTHS))):
            for _ in range(BLOCKS + 1):
                self.ups.append(Block(enter + kept.pop(), wide, side))
                enter = wide
            if level:
                self.ups.append(nn.Conv2d(wide, wide, 3, padding=1))
                side *= 2
        self.norm, self.last = nn.GroupNorm(8, enter), nn.Conv2d(enter, 3, 3, padding=1)
        half = WIDTHS[0] // 2
        self.register_buffer("rates", torch.exp(-math.log(1e4) * torch.arange(half) / half))

    def forward(self, x, small, level):
        angles = 1000 * level[:, None] * self.rates
        noise = F.silu(self.noise(torch.cat([angles.cos(), angles.sin()], 1)))
        x = self.enter(torch.cat([x, F.interpolate(small, x.shape[2:], mode="bicubic")], 1))
        kept = [x]
        for down in self.downs:
            x = down(x, noise) if isinstance(down, Block) else down(x)
            kept.append(x)
        for block in self.middle:
            x = block(x, noise)
        for up in self.ups:
            if isinstance(up, Block):
                x = up(torch.cat([x, kept.pop()], 1), noise)
            else:
                x = up(F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))


def faces():
    """An oval with two eyes and a mouth, each in its colours, as bytes on the device."""
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, SIDE, device=device)] * 2, indexing="ij")
    place = 0.3 * torch.rand(FACES, 2, 1, 1, 1, device=device) - 0.15
    x, y = x - place[:, 0], y - place[:, 1]
    colours = torch.rand(3, FACES, 3, 1, 1, device=device)
    face = (x.square() / 0.4 + y.square() / 0.6 < 1).float()
    eyes = ((x.abs() - 0.25).square() + (y + 0.2).square() < 0.01).float()
    mouth = ((x.abs() < 0.25) & ((y - 0.35).abs() < 0.05)).float()
    whole = colours[0] * (1 - face) + colours[1] * (face - eyes - mouth) + colours[2] * (eyes + mouth)
    return (255 * whole.clamp(0, 1)).to(torch.uint8)


def main():
    data = faces()
    with device:
        model = Sharpener()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        large = data[torch.randint(FACES, (BATCH,), device=device)].float() / 127.5 - 1
        small = F.interpolate(large, (SMALL, SMALL), mode="area")
        level, noise = torch.rand(BATCH, device=device), torch.randn_like(large)
        kept = torch.cos(level * math.pi / 2)[:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(kept * large + (1 - kept.square()).sqrt() * noise, small, level)
        loss = F.l1_loss(found.float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
