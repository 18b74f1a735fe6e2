"""What is hidden in a molecule's line of letters? A compiled transformer of SMILES, pretrained with masks."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
MOLECULES, BATCH, LENGTH, WIDE, LAYERS, HEAD, LETTERS = (
    (20, 4, 12, 32, 2, 16, 24) if TINY else (50_000, 128, 128, 768, 8, 64, 2368)
)
HIDDEN, RATE = 1, 0.15
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "eager"
low = "bfloat16" in FIX and device.type == "cuda"
torch.manual_seed(0)
if "tensor-cores" in FIX:
    torch.set_float32_matmul_precision("high")


def turned(x, cos, sin):
    """Places as angles."""
    first, second = x.chunk(2, 3)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            turned(q, cos, sin).to(v.dtype), turned(k, cos, sin).to(v.dtype), v
        )
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.last = (
            nn.Linear(WIDE, WIDE),
            nn.LayerNorm(WIDE),
            nn.Linear(WIDE, LETTERS),
        )

    def forward(self, x, labels):
        logits = self.last(self.norm(F.gelu(self.hidden(x)))).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Molformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.head = nn.Embedding(LETTERS, WIDE), Head()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        rates = 1e4 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        angles = torch.arange(LENGTH)[:, None] * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, letters, labels):
        x = self.letters(letters)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(x, labels)


def mask(letters):
    hidden = torch.rand(letters.shape, device=device) < RATE
    return torch.where(hidden, HIDDEN, letters), torch.where(hidden, letters, -100)


def main():
    molecules = 2 + torch.randint((LETTERS - 2) // 4, (MOLECULES, LENGTH), device=device) ** 2 % (LETTERS - 2)
    with device:
        model = Molformer()
    for part in [*model.layers, model.head]:
        part.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.6e-4, betas=(0.9, 0.99), fused=device.type == "cuda"
    )
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        letters, labels = mask(molecules[torch.randint(MOLECULES, (BATCH,), device=device)])
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(letters, labels)
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
