"""Streets in nineteen kinds: a vision transformer with a linear head, trained on crops."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SIZE, BATCH, SIDE, PATCH, WIDE, LAYERS, HEAD, KINDS = (
    (8, 2, 32, 8, 32, 1, 16, 5) if TINY else (256, 32, 384, 16, 768, 12, 64, 19)
)
GRID = SIDE // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    """Each patch's kinds, and how wrong they are where labels are known, at a quarter of the size."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDE), nn.Linear(WIDE, KINDS)

    def forward(self, x, labels):
        logits = self.last(self.norm(x)).float().transpose(1, 2).unflatten(2, (GRID, GRID))
        logits = F.interpolate(logits, scale_factor=PATCH // 4, mode="bilinear")
        return F.cross_entropy(logits, labels, ignore_index=255)


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3 * PATCH * PATCH, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, WIDE))
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), Head()

    def forward(self, images, labels):
        patches = images.unflatten(3, (GRID, PATCH)).unflatten(2, (GRID, PATCH))
        x = self.enter(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x, labels)


def streets():
    """Crops in low precision, and their labels at a quarter of the size, some of which are not known."""
    coarse = torch.randint(KINDS, (SIZE, 1, GRID // 2, GRID // 2), device=device).float()
    labels = F.interpolate(coarse, size=(SIDE // 4, SIDE // 4))[:, 0].long()
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device, dtype=torch.bfloat16 if low else torch.float32)
    images[:, 0] += F.interpolate(coarse, size=(SIDE, SIDE))[:, 0].to(images.dtype) / KINDS
    labels[torch.rand(labels.shape, device=device) < 0.05] = 255
    return images, labels


def main():
    images, labels = streets()
    with device:
        model = Segmenter()
    for part in [*model.blocks, model.head]:
        part.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50))
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(images[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
