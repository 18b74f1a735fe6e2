"""A vision transformer is fine-tuned on breeds of pets: four pictures at a time, and gradients added up."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))  # updates of the weights
PETS, BATCH, MICRO, SIZE, PATCH, WIDE, LAYERS, HEAD, BREEDS = (
    (16, 8, 2, 16, 8, 32, 2, 16, 5) if TINY else (512, 64, 4, 224, 16, 768, 12, 64, 37)
)
if "whole-batch" in FIX:
    MICRO = BATCH
ACCUMULATED, PLACES = BATCH // MICRO, (SIZE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
mixed = device.type == "cuda"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDE, PATCH, PATCH)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, WIDE))
        self.places = nn.Parameter(0.02 * torch.randn(PLACES + 1, WIDE))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, BREEDS)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def param_groups(model):
    """The new head learns ten times as fast; norms and biases do not decay."""
    groups = {}
    for name, weight in model.named_parameters():
        key = (name.startswith("head"), weight.ndim > 1)
        groups.setdefault(key, []).append(weight)
    return [
        {"params": weights, "lr": 3e-4 if head else 3e-5, "weight_decay": 0.05 if decays else 0.0}
        for (head, decays), weights in groups.items()
    ]


def main():
    pictures = torch.randint(256, (PETS, 3, SIZE, SIZE), device=device, dtype=torch.uint8)
    breeds = torch.randint(BREEDS, (PETS,), device=device)
    pictures //= 1 + (breeds % 3).to(torch.uint8)[:, None, None, None]
    with device:
        model = ViT()
    optimizer = torch.optim.AdamW(param_groups(model), fused=mixed)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed)
    lead, began, shown = min(STEPS // 2, 3), 0.0, 0.0
    for update in range(STEPS):
        if update == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen, read = torch.randint(PETS, (BATCH,), device=device), 0.0
        for part in chosen.split(MICRO):
            x = pictures[part].float() / 127.5 - 1
            with torch.autocast(device.type, torch.float16, enabled=mixed):
                loss = F.cross_entropy(model(x), breeds[part]) / ACCUMULATED
            scaler.scale(loss).backward()
            if "loss-rarely" not in FIX or update % 10 == 0 or update == STEPS - 1:
                read += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        shown = read or shown
        if update % 10 == 0:
            print(f"update {update}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per update")


main()
