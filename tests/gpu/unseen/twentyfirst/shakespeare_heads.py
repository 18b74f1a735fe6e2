"""A small GPT that writes plays letter by letter, built from heads as lectures explain it."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
LETTERS, BATCH, BLOCK, WIDE, HEADS, LAYERS = (
    (2000, 4, 16, 24, 3, 2) if TINY else (1_115_394, 64, 256, 384, 6, 6)
)
VOCABULARY, EVERY, CHECKS = 65, 500, 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(1337)


class Head(nn.Module):
    """One head of self-attention."""

    def __init__(self, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDE, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(BLOCK, BLOCK)))

    def forward(self, x):
        long = x.shape[1]
        k, q = self.key(x), self.query(x)
        weights = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        weights = weights.masked_fill(self.tril[:long, :long] == 0, float("-inf"))
        return F.softmax(weights, dim=-1) @ self.value(x)


class MultiHeadAttention(nn.Module):
    """Several heads side by side."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head(WIDE // HEADS) for _ in range(HEADS))
        self.project = nn.Linear(WIDE, WIDE)
        if "heads-together" in FIX:
            weights = [
                torch.cat([getattr(h, n).weight for h in self.heads]) for n in ("query", "key", "value")
            ]
            self.qkv = nn.Parameter(torch.cat(weights).detach())
            del self.heads

    def forward(self, x):
        if "heads-together" in FIX:
            q, k, v = F.linear(x, self.qkv).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.project(out.transpose(1, 2).flatten(2))
        return self.project(torch.cat([head(x) for head in self.heads], dim=-1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention()
        self.feed = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.ReLU(), nn.Linear(4 * WIDE, WIDE))
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, WIDE), nn.Embedding(BLOCK, WIDE)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, VOCABULARY)

    def forward(self, index, targets):
        x = self.letters(index) + self.places(torch.arange(index.shape[1], device=device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def written():
    """A text in which each letter depends on the one before."""
    likely = torch.rand(VOCABULARY, 4).mul(VOCABULARY).long().tolist()
    picks = torch.randint(4, (LETTERS,)).tolist()
    text, letter = [], 0
    for pick in picks:
        letter = likely[letter][pick]
        text.append(letter)
    return torch.tensor(text)


def get_batch(data):
    begins = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([data[i : i + BLOCK] for i in begins])
    y = torch.stack([data[i + 1 : i + BLOCK + 1] for i in begins])
    return x.to(device), y.to(device)


@torch.no_grad()
def estimate_loss(model, data):
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        losses = [model(*get_batch(data)) for _ in range(2 if TINY else CHECKS)]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    data = written()
    train, held_out = data[: int(0.9 * LETTERS)], data[int(0.9 * LETTERS) :]
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million weights")
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step % EVERY == 0:
            print(f"step {step}: held out {estimate_loss(model, held_out):.4f}")
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        x, y = get_batch(train)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
