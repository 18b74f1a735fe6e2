"""Who pays back? A transformer over the columns of a table: each figure and each kind is a token."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
ROWS, BATCH, FIGURES, KINDS, WIDE, HEADS, LAYERS = (
    (100, 8, 5, (3, 4), 16, 2, 2)
    if TINY
    else (400_000, 2048, 104, (2, 2, 3, 4, 5, 7, 9, 12, 18, 25, 51, 58), 192, 8, 3)
)
INNER = 4 * WIDE // 3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Tokenizer(nn.Module):
    """A direction for each figure, a vector for each kind, and a token that gathers all."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.07 * torch.randn(FIGURES + 1, WIDE))
        self.kinds = nn.Embedding(sum(KINDS), WIDE)
        self.bias = nn.Parameter(0.07 * torch.randn(FIGURES + len(KINDS), WIDE))
        offsets = torch.tensor((0, *KINDS[:-1])).cumsum(0)
        self.register_buffer("offsets", offsets)

    def forward(self, figures, kinds):
        ones = torch.ones(len(figures), 1, device=figures.device)
        x = self.weight * torch.cat([ones, figures], 1)[:, :, None]
        x = torch.cat([x, self.kinds(kinds + self.offsets)], 1)
        return x + F.pad(self.bias, (0, 0, 1, 0))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def forward(self, queries, x):
        q, k, v = (
            one.unflatten(2, (HEADS, -1)).transpose(1, 2) for one in (self.q(queries), self.k(x), self.v(x))
        )
        if "fused-attention" in FIX:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            chances = F.softmax(q @ k.transpose(2, 3) / k.shape[3] ** 0.5, -1)
            y = chances.to(v.dtype) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.norm1, self.norm2 = None if first else nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDE, 2 * INNER), nn.Linear(INNER, WIDE)

    def forward(self, x):
        y = x if self.norm1 is None else self.norm1(x)
        x = x + self.attention(y, y)
        one, gate = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(one * F.relu(gate))


class FTTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = Tokenizer()
        self.layers = nn.ModuleList(Layer(first=i == 0) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, 1)

    def forward(self, figures, kinds):
        x = self.tokens(figures, kinds)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.relu(self.norm(x[:, 0])))[:, 0]


def table():
    """Figures and kinds, some of which matter, on the device."""
    figures = torch.randn(ROWS, FIGURES, device=device)
    kinds = torch.stack([torch.randint(count, (ROWS,), device=device) for count in KINDS], 1)
    matter = torch.randn(FIGURES, device=device) * (torch.rand(FIGURES, device=device) < 0.3)
    score = figures @ matter / FIGURES**0.5 + (kinds[:, -1] % 3 - 1) * figures[:, 0]
    return figures, kinds, (score + 0.3 * torch.randn_like(score) > 0).float()


def main():
    figures, kinds, paid = table()
    with device:
        model = FTTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5, fused=low)
    lead, began, shown, hits = min(STEPS // 2, 6), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(ROWS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(figures[chosen], kinds[chosen])
        right = paid[chosen]
        loss = F.binary_cross_entropy_with_logits(logits.float(), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, hits = loss.item(), ((logits > 0) == (right > 0)).float().mean().item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, right {hits:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, right {hits:.4f}; {each:.3f} ms per step")


main()
