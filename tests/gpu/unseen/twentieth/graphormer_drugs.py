"""Gaps of molecules by a transformer over their atoms, which knows how far apart any two are (PCQM4M)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SIZE, BATCH, MAX_NODE, USUAL, WIDE, LAYERS, HEADS = (
    (12, 4, 24, 7, 32, 2, 4) if TINY else (2048, 256, 128, 24, 512, 12, 32)
)
ATOMS, FAR, BONDS = 64, 20, 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cuda.enable_cudnn_sdp(False)  # it has no gradients of what is added to scores


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE))

    def forward(self, x, bias):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv, attn_mask=bias).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Graphormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms, self.degrees = nn.Embedding(ATOMS + 1, WIDE), nn.Embedding(8, WIDE)
        self.apart, self.bonds = nn.Embedding(FAR, HEADS), nn.Embedding(BONDS, HEADS)
        for table in (self.atoms, self.degrees, self.apart, self.bonds):
            nn.init.normal_(table.weight, std=0.02)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, 1)

    def forward(self, batch):
        atoms = batch["atoms"]
        real = atoms > 0  # 0 is no atom
        bias = self.apart(batch["apart"].int()) + self.bonds(batch["bonds"].int())
        bias = bias.permute(0, 3, 1, 2).masked_fill(~real[:, None, None], -1e4)
        bias = bias.to(torch.bfloat16 if low else torch.float32).contiguous()
        x = self.atoms(atoms) + self.degrees(batch["degrees"])
        for layer in self.layers:
            x = layer(x, bias)
        x = (self.norm(x) * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.head(x)[:, 0]


class Molecules:
    """All molecules on the device, with room for the largest that the data set may have."""

    def __init__(self):
        sizes = (USUAL + 0.28 * USUAL * torch.randn(SIZE)).long().clamp(4, MAX_NODE)
        self.sizes = sizes
        places = torch.arange(MAX_NODE)
        real = (places < sizes[:, None]).to(device)
        pairs = real[:, :, None] & real[:, None]
        self.atoms = torch.randint(1, ATOMS + 1, (SIZE, MAX_NODE), device=device) * real
        self.degrees = torch.randint(1, 5, (SIZE, MAX_NODE), device=device) * real
        off = (places[:, None] - places).abs().to(device)
        turns = torch.randint(1, 4, (SIZE, 1, 1), device=device)
        self.apart = ((off // turns).clamp(max=FAR - 1) * pairs).to(torch.uint8)
        self.bonds = torch.where(off == 1, torch.randint(1, BONDS, off.shape, device=device), 0) * pairs
        self.bonds = self.bonds.to(torch.uint8)
        self.gaps = (self.atoms.float().sum(1) / (32 * sizes.to(device)) - 1).float()

    def batch(self, chosen):
        there = chosen.to(device, non_blocking=True)
        found = {name: getattr(self, name)[there] for name in ("atoms", "degrees", "apart", "bonds")}
        if "longest-of-batch" in FIX:
            longest = -(-int(self.sizes[chosen].max()) // 8) * 8
            for name in ("atoms", "degrees"):
                found[name] = found[name][:, :longest]
            for name in ("apart", "bonds"):
                found[name] = found[name][:, :longest, :longest]
        return found, self.gaps[there]


def main():
    molecules = Molecules()
    with device:
        model = Graphormer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=low)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch, gaps = molecules.batch(torch.randint(SIZE, (BATCH,)))
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            off = model(batch)
        loss = F.l1_loss(off.float(), gaps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: off by {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"off by {shown:.6f}; {each:.3f} ms per step")


main()
