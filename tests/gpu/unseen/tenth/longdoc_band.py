"""Words left out of long documents, guessed by a network whose words look at their neighbourhood alone."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
LENGTH, WINDOW, WIDTH, HEADS, LAYERS, VOCAB = (
    (64, 8, 16, 2, 1, 50) if TINY else (8192, 256, 768, 12, 6, 30_592)
)
ASKED = LENGTH // 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class LocalAttention(nn.Module):
    """Each word looks at those that are at most a window away, before and behind."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def banded(self, q, k, v):
        """Queries in blocks, each with the blocks before and behind."""
        count = LENGTH // WINDOW

        def blocks(x):
            return x.unflatten(2, (count, WINDOW)).transpose(1, 2).flatten(0, 1)

        def neighbours(x):
            x = F.pad(x, (0, 0, WINDOW, WINDOW))
            return torch.cat([blocks(x[:, :, i * WINDOW : i * WINDOW + LENGTH]) for i in range(3)], 2)

        at = torch.arange(WINDOW, device=q.device)
        there = torch.arange(-WINDOW, 2 * WINDOW, device=q.device)
        near = (there - at[:, None]).abs() <= WINDOW
        absolute = there + torch.arange(count, device=q.device)[:, None] * WINDOW
        inside = (absolute >= 0) & (absolute < LENGTH)
        mask = (near & inside[:, None])[:, None]
        x = F.scaled_dot_product_attention(blocks(q), neighbours(k), neighbours(v), attn_mask=mask)
        return x.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if "banded" in FIX:
            y = self.banded(q, k, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = LocalAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class LongEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        at = torch.arange(LENGTH, device=device)
        # One mask for all layers, made once.
        self.register_buffer("mask", ((at[:, None] - at).abs() <= WINDOW)[None, None], persistent=False)

    def forward(self, words, asked):
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.out(self.norm(x[0, asked]))  # words that are asked for alone


def documents(count):
    """Each word often comes again some words later."""
    words = torch.randint(5, VOCAB, (count, LENGTH), device=device)
    words[:, 12:] = torch.where(
        torch.rand(count, LENGTH - 12, device=device) < 0.5, words[:, :-12], words[:, 12:]
    )
    return words


def main():
    cuda = device.type == "cuda"
    texts = documents(4 if TINY else 64)
    with device:
        model = LongEncoder()
    fused = cuda and "fused-optimizer" in FIX
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if fused else {}))
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        words = texts[step % len(texts)]
        asked = torch.randperm(LENGTH, device=device)[:ASKED]
        hidden = words.index_fill(0, asked, 1)[None]
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            logits = model(hidden, asked)
        loss = F.cross_entropy(logits.float(), words[asked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
