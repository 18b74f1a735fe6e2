"""Which disease has a leaf? A transformer learns it from photographs that are flipped and mixed."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 250))
LEAVES, BATCH, SIZE, PATCH, WIDE, LAYERS, HEAD, KINDS = (
    (16, 4, 16, 8, 32, 2, 16, 5) if TINY else (2048, 256, 224, 16, 384, 12, 64, 38)
)
PLACES = (SIZE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Enter(nn.Module):
    """Bytes become patches: some leaves flipped, each mixed with another."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * PATCH * PATCH, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(PLACES, WIDE))

    def forward(self, leaves, flipped, share):
        x = leaves.float() / 127.5 - 1
        x = torch.where(flipped[:, None, None, None], x.flip(3), x)
        x = share * x + (1 - share) * x.flip(0)
        x = x.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH)).permute(0, 2, 4, 1, 3, 5)
        return self.linear(x.flatten(3).flatten(1, 2)) + self.places


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


class Leave(nn.Module):
    """The loss for both leaves of a mixture."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(WIDE, KINDS)

    def forward(self, x, kinds, share):
        logits = self.linear(self.norm(x).mean(1)).float()
        one = F.cross_entropy(logits, kinds, label_smoothing=0.1)
        return share * one + (1 - share) * F.cross_entropy(logits, kinds.flip(0), label_smoothing=0.1)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = Enter(), Leave()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, leaves, kinds):
        flipped = torch.rand(len(leaves), device=leaves.device) < 0.5
        share = 0.5 + 0.5 * torch.rand((), device=leaves.device)
        x = self.enter(leaves, flipped, share)
        for block in self.blocks:
            x = block(x)
        return self.leave(x, kinds, share)

    def compile_parts(self):
        for part in (self.enter, self.leave, *self.blocks):
            part.compile(backend=backend, dynamic=False)


def main():
    leaves = torch.randint(256, (LEAVES, 3, SIZE, SIZE), device=device, dtype=torch.uint8)
    kinds = torch.randint(KINDS, (LEAVES,), device=device)
    leaves //= 1 + (kinds % 4).to(torch.uint8)[:, None, None, None]
    with device:
        model = ViT()
    model.compile_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=low)
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(LEAVES, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(leaves[chosen], kinds[chosen])
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
