"""Features of pictures for a model that reads and sees: all patches in one row, compiled layers."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))  # batches of pictures
SIZE, PICTURES, SIDE, PATCH, WIDTH, HEADS, INNER, LAYERS, LEAVE = (
    (6, 2, 32, 8, 16, 2, 32, 2, 24) if TINY else (64, 8, 336, 14, 1280, 16, 3456, 24, 2048)
)
GRID = SIDE // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
backend = "inductor" if device.type == "cuda" else "aot_eager"
torch.manual_seed(0)


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Patches of a picture look at each other, not at those of another."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cos, sin, ends, lengths):
        q, k, v = self.qkv(x).unflatten(1, (3, HEADS, -1)).unbind(1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if "one-attention" in FIX:
            q, k, v = (one.unflatten(0, (len(lengths), lengths[0])).transpose(1, 2) for one in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)
            return self.proj(y.flatten(1))
        if "lengths-once" not in FIX:
            lengths = (ends[1:] - ends[:-1]).tolist()
        parts = zip(*(one.transpose(0, 1)[None].split(lengths, 2) for one in (q, k, v)), strict=True)
        y = torch.cat([F.scaled_dot_product_attention(*part) for part in parts], 2)
        return self.proj(y[0].transpose(0, 1).flatten(1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate_up, self.down = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x, cos, sin, ends, lengths):
        x = x + self.attention(self.norm1(x), cos, sin, ends, lengths)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, 1)
        return x + self.down(F.silu(gate) * up)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(3 * PATCH**2, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.merge = nn.Sequential(nn.Linear(4 * WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, LEAVE))
        # Rows and columns turn a half of each head.
        quarter = WIDTH // HEADS // 4
        speeds = 1.0 / 10000 ** (torch.arange(quarter) / quarter)
        rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        angles = torch.stack([rows, columns], 2).view(GRID // 2, 2, GRID // 2, 2, 2).transpose(1, 2)
        angles = (angles.reshape(-1, 2, 1) * speeds).flatten(1)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, patches, grids):
        """All patches, and the heights and widths of the pictures that they are of."""
        sizes = [high * wide for high, wide in grids]
        ends = torch.tensor([0, *sizes], device=patches.device).cumsum(0)
        turns = self.angles.float().repeat(len(grids), 1)[:, None]
        cos, sin = turns.cos(), turns.sin()
        x = self.patch(patches)
        for block in self.blocks:
            x = block(x, cos, sin, ends, sizes)
        return self.merge(self.norm(x).unflatten(0, (-1, 4)).flatten(1))


def to_patches(images):
    """Four neighbours come after each other, which become one feature at the end."""
    x = images.unflatten(3, (GRID // 2, 2, PATCH)).unflatten(2, (GRID // 2, 2, PATCH))
    return x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, 3 * PATCH**2)


@torch.inference_mode()
def main():
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=dtype)
    with device:
        tower = Tower()
    tower = tower.to(dtype).eval()
    for block in tower.blocks:
        block.compile(backend=backend)
    found = torch.zeros(SIZE, LEAVE, device=device)
    lead, began, spread = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = (torch.arange(PICTURES, device=device) + step * PICTURES) % SIZE
        features = tower(to_patches(images[chosen]), [(GRID, GRID)] * PICTURES)
        found[chosen] = features.unflatten(0, (PICTURES, -1)).float().mean(1)
        if "spread-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            spread = features.float().std().item()
        if step % 20 == 0:
            print(f"{(step + 1) * PICTURES} pictures, spread {spread:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread {spread:.5f}, mean {found.mean().item():.6f}; {each:.3f} ms per batch")


main()
