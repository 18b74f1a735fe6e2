"""Two views of a picture are to have the same numbers, each of them a new one: twins, compiled."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
PICTURES, BATCH, LARGE, SIDE, PATCH, WIDE, LAYERS, HEAD, OUT = (
    (8, 4, 40, 32, 8, 32, 1, 16, 16) if TINY else (2048, 512, 112, 96, 8, 512, 8, 64, 2048)
)
OFF = 0.005
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDE), nn.Linear(WIDE, OUT, bias=False)
        self.middle, self.last = nn.BatchNorm1d(OUT), nn.Linear(OUT, OUT, bias=False)

    def forward(self, x):
        return self.last(F.relu(self.middle(self.first(self.norm(x).mean(1)))))


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.projector = nn.Linear(3 * PATCH * PATCH, WIDE), Projector()
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, WIDE))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, patches):
        x = self.enter(patches) + self.places
        for block in self.blocks:
            x = block(x)
        return self.projector(x)


def redundancy(both):
    """How far the numbers of two views are from going together one by one."""
    first, second = both.float().chunk(2)
    first, second = ((x - x.mean(0)) / (x.std(0) + 1e-5) for x in (first, second))
    common = first.T @ second / len(first)
    on = (common.diagonal() - 1).pow(2).sum()
    return (1 - OFF) * on + OFF * ((common.pow(2)).sum() - common.diagonal().pow(2).sum())


def views(pictures):
    """Patches of each picture twice: cut anywhere, turned around or not, lighter or darker."""
    count = 2 * len(pictures)
    top, left = torch.randint(LARGE - SIDE + 1, (2, count, 1), device=pictures.device)
    along = torch.arange(SIDE, device=pictures.device)
    columns = torch.where(torch.rand(count, 1, device=pictures.device) < 0.5, along, SIDE - 1 - along) + left
    rows = torch.arange(count, device=pictures.device)[:, None, None] % len(pictures)
    cut = pictures[rows, :, (along + top)[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
    light = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, device=pictures.device)
    x = ((cut.float() * light).clamp(0, 255) / 255 - 0.45) / 0.225
    x = x.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH)).permute(0, 2, 4, 1, 3, 5)
    return x.flatten(3).flatten(1, 2).to(torch.bfloat16 if low else torch.float32)


def main():
    shape = (PICTURES, 3, LARGE // 8, LARGE // 8)
    coarse = torch.randint(256, shape, device=device).float()
    pictures = F.interpolate(coarse, size=(LARGE, LARGE), mode="bilinear").to(torch.uint8)
    with device:
        model = Twins()
    seen, far = views, redundancy
    if low:
        for part in (*model.blocks, model.projector):
            part.compile(dynamic=False)
        seen, far = torch.compile(views, dynamic=False), torch.compile(redundancy, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / (STEPS + 1)))
    )
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        both = seen(pictures[torch.randint(PICTURES, (BATCH,), device=device)])
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(both)
        loss = far(found)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.3f}")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.4f}; {each:.3f} ms per step")


main()
