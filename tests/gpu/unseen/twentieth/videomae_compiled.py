"""A transformer learns what films look like: nine tenths of each are hidden, and it says what was there."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
FILMS, BATCH, TIMES, GRID, PIXELS, SHOWN, WIDE, LAYERS, NARROW, LAST, HEAD = (
    (8, 2, 2, 4, 24, 4, 32, 2, 16, 1, 16)
    if TINY
    else (192, 64, 8, 14, 2 * 3 * 16 * 16, 160, 768, 12, 384, 4, 64)
)
TUBES = TIMES * GRID * GRID
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Enter(nn.Module):
    """Bytes of what is shown become vectors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(PIXELS, WIDE)

    def forward(self, pixels, places):
        return self.linear(pixels / 127.5 - 1) + places


class Between(nn.Module):
    """What was seen, then a sign for each tube that was not, all with their places."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(WIDE, NARROW)
        self.hidden = nn.Parameter(0.02 * torch.randn(NARROW))

    def forward(self, x, places):
        seen = self.linear(self.norm(x)).float()
        signs = self.hidden.expand(x.shape[0], TUBES - SHOWN, NARROW)
        return torch.cat([seen, signs], 1) + places


class Leave(nn.Module):
    """How far off each hidden tube is, whose pixels are brought to mean 0 and spread 1."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(NARROW), nn.Linear(NARROW, PIXELS)

    def forward(self, x, pixels):
        said = self.linear(self.norm(x[:, SHOWN:])).float()
        truth = pixels.float()
        truth = (truth - truth.mean(2, keepdim=True)) / (truth.var(2, keepdim=True) + 1e-6).sqrt()
        return (said - truth).square().mean()


class VideoMAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.between, self.leave = Enter(), Between(), Leave()
        self.encoder = nn.ModuleList(Block(WIDE) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Block(NARROW) for _ in range(LAST))
        self.register_buffer("places", 0.5 * torch.randn(TUBES, WIDE))
        self.register_buffer("places_after", 0.5 * torch.randn(TUBES, NARROW))

    def forward(self, films, chosen):
        order = torch.rand(len(chosen), TUBES, device=films.device).argsort(1)
        shown, hidden = order[:, :SHOWN], order[:, SHOWN:]
        x = self.enter(films[chosen[:, None], shown], self.places[shown])
        for block in self.encoder:
            x = block(x)
        x = self.between(x, self.places_after[order])
        for block in self.decoder:
            x = block(x)
        return self.leave(x, films[chosen[:, None], hidden])

    def compile_parts(self):
        for part in (self.leave, *self.encoder, *self.decoder):
            part.compile(backend=backend, dynamic=False)


def main():
    films = torch.randint(256, (FILMS, TUBES, PIXELS), device=device, dtype=torch.uint8)
    films //= 1 + torch.randint(4, (FILMS, TUBES, 1), device=device, dtype=torch.uint8)
    with device:
        model = VideoMAE()
    model.compile_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=low)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(FILMS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(films, chosen)
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
