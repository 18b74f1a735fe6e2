"""Rooms from noise: a compiled diffusion transformer learns in the space of an encoder that is known."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
ROOMS, BATCH, SIZE, CHANNELS, CODE, PATCH, WIDE, LAYERS, HEAD, TIMES = (
    (8, 4, 32, 8, 4, 2, 32, 2, 16, 50) if TINY else (512, 32, 256, 64, 4, 2, 384, 12, 64, 1000)
)
GROUPS, GRID = 8, SIZE // 8 // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Residual(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, enter), nn.Conv2d(enter, leave, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, leave), nn.Conv2d(leave, leave, 3, padding=1)
        self.skip = nn.Conv2d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Encoder(nn.Module):
    """Of an autoencoder that was trained before: the mean and the spread of a picture's code."""

    def __init__(self):
        super().__init__()
        widths = [CHANNELS, CHANNELS, 2 * CHANNELS, 4 * CHANNELS, 4 * CHANNELS]
        layers = [nn.Conv2d(3, CHANNELS, 3, padding=1)]
        for i in range(4):
            layers += [Residual(widths[i], widths[i + 1]), Residual(widths[i + 1], widths[i + 1])]
            if i < 3:
                layers.append(nn.Conv2d(widths[i + 1], widths[i + 1], 3, 2, 1))
        layers += [nn.GroupNorm(GROUPS, widths[4]), nn.SiLU(), nn.Conv2d(widths[4], 2 * CODE, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pictures):
        return self.layers(pictures.float() / 127.5 - 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDE, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDE, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.when = nn.Linear(WIDE, 6 * WIDE)

    def forward(self, x, when):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.when(F.silu(when))[:, None].chunk(6, 2)
        y = self.norm1(x) * (1 + scale1) + shift1
        qkv = self.qkv(y).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(y)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y)))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(CODE, WIDE, PATCH, PATCH), nn.Linear(WIDE, CODE * PATCH * PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(GRID * GRID, WIDE))
        self.times = nn.Embedding(TIMES, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        for block in self.blocks:
            block.compile(backend=backend, dynamic=False)

    def forward(self, x, t):
        x, when = self.enter(x).flatten(2).transpose(1, 2) + self.places, self.times(t)
        for block in self.blocks:
            x = block(x, when)
        x = self.leave(x).unflatten(1, (GRID, GRID)).unflatten(3, (CODE, PATCH, PATCH))
        return x.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


class Training:
    def __init__(self):
        self.rooms = torch.randint(256, (ROOMS, 3, SIZE, SIZE), device=device, dtype=torch.uint8)
        self.rooms //= torch.randint(1, 5, (ROOMS, 1, 1, 1), device=device, dtype=torch.uint8)
        with device:
            self.encoder, self.model = Encoder().eval().requires_grad_(False), DiT()
            self.kept = torch.cos(torch.linspace(0, 1.5, TIMES)).square()
        self.codes = None
        if "latents-kept" in FIX:
            self.codes = torch.cat([self.encode(part) for part in self.rooms.split(BATCH)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0, fused=low)

    @torch.no_grad()
    def encode(self, pictures):
        with torch.autocast(device.type, torch.bfloat16, enabled=low and "encoder-low" in FIX):
            return self.encoder(pictures).float()

    def step(self):
        chosen = torch.randint(ROOMS, (BATCH,), device=device)
        code = self.encode(self.rooms[chosen]) if self.codes is None else self.codes[chosen]
        mean, log_spread = code.chunk(2, 1)
        x = 0.18 * (mean + torch.randn_like(mean) * (0.5 * log_spread.clamp(-30, 20)).exp())
        t, noise = torch.randint(TIMES, (BATCH,), device=device), torch.randn_like(x)
        kept = self.kept[t][:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = self.model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t)
            loss = F.mse_loss(found.float(), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    training, lead, began, shown = Training(), min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = training.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
