"""Which residues of a protein touch? The trunk of a folding network over pairs of residues."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))  # proteins
RESIDUES, SINGLE, PAIR, HEADS, BLOCKS, BINS = (16, 24, 16, 2, 1, 8) if TINY else (256, 384, 128, 4, 8, 64)
CHUNK = None if "no-chunks" in FIX else 4  # rows at a time, so that long proteins fit
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


def chunked(layer, size, x, *others):
    """Apply a layer to some rows at a time, and put the answers together."""
    if size is None:
        return layer(x, *others)
    return torch.cat([layer(part, *others) for part in x.split(size, dim=0)], 0)


class TriangleMultiplication(nn.Module):
    def __init__(self, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.norm_in, self.norm_out = nn.LayerNorm(PAIR), nn.LayerNorm(PAIR)
        self.ab, self.ab_gate = nn.Linear(PAIR, 2 * PAIR), nn.Linear(PAIR, 2 * PAIR)
        self.out, self.gate = nn.Linear(PAIR, PAIR), nn.Linear(PAIR, PAIR)

    def forward(self, z):
        z = self.norm_in(z)
        a, b = (torch.sigmoid(self.ab_gate(z)) * self.ab(z)).permute(2, 0, 1).chunk(2)
        x = a @ b.transpose(1, 2) if self.outgoing else a.transpose(1, 2) @ b
        return self.out(self.norm_out(x.permute(1, 2, 0))) * torch.sigmoid(self.gate(z))


class RowAttention(nn.Module):
    """Attention within rows, with a bias for each pair."""

    def __init__(self):
        super().__init__()
        self.qkv, self.gate = nn.Linear(PAIR, 3 * PAIR, bias=False), nn.Linear(PAIR, PAIR)
        self.out = nn.Linear(PAIR, PAIR)

    def forward(self, rows, bias):
        q, k, v = self.qkv(rows).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(rows), -1, -1, -1))
        return self.out(x.transpose(1, 2).flatten(2) * torch.sigmoid(self.gate(rows)))


class TriangleAttention(nn.Module):
    def __init__(self, starting):
        super().__init__()
        self.starting, self.norm = starting, nn.LayerNorm(PAIR)
        self.bias, self.attention = nn.Linear(PAIR, HEADS, bias=False), RowAttention()

    def forward(self, z):
        z = self.norm(z if self.starting else z.transpose(0, 1))
        bias = self.bias(z).permute(2, 0, 1)[None].contiguous()
        x = chunked(self.attention, CHUNK, z, bias)
        return x if self.starting else x.transpose(0, 1)


class Transition(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(PAIR)
        self.mlp = nn.Sequential(nn.Linear(PAIR, 4 * PAIR), nn.ReLU(), nn.Linear(4 * PAIR, PAIR))

    def forward(self, z):
        return chunked(self.mlp, CHUNK, self.norm(z))


class PairBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(
            [
                TriangleMultiplication(True),
                TriangleMultiplication(False),
                TriangleAttention(True),
                TriangleAttention(False),
                Transition(),
            ]
        )

    def forward(self, z):
        for part in self.parts:
            z = z + part(z)
        return z


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(SINGLE, PAIR), nn.Linear(SINGLE, PAIR)
        self.distance = nn.Embedding(65, PAIR)
        self.blocks = nn.ModuleList(PairBlock() for _ in range(BLOCKS))
        self.bins = nn.Linear(PAIR, BINS)

    def forward(self, single):
        at = torch.arange(len(single), device=single.device)
        relative = (at[:, None] - at).clamp(-32, 32) + 32
        z = self.left(single)[:, None] + self.right(single)[None] + self.distance(relative)
        for block in self.blocks:
            z = block(z)
        logits = self.bins(z)
        return (logits + logits.transpose(0, 1)).float().softmax(-1)


@torch.inference_mode()
def main():
    trunk = Trunk().to(device, dtype).eval()
    # What a language model of proteins says of each residue; computed before, here at random.
    proteins = [torch.randn(RESIDUES, SINGLE, device=device, dtype=dtype) for _ in range(8)]
    trunk(proteins[0])
    lead, began, kept = min(STEPS // 2, 2), 0.0, []
    for number in range(STEPS):
        if number == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        distogram = trunk(proteins[number % len(proteins)])
        contacts = distogram[..., : BINS // 3].sum(-1)
        kept.append(contacts if "contacts-at-end" in FIX else contacts.cpu())
    kept = [contacts.cpu() for contacts in kept[-len(proteins) :]]
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    touching = sum((contacts > 0.35).float().mean().item() for contacts in kept) / len(kept)
    mean = sum(contacts.mean().item() for contacts in kept) / len(kept)
    print(f"{100 * touching:.2f} % of pairs touch, mean {mean:.4f}; {each:.3f} ms per protein")


main()
