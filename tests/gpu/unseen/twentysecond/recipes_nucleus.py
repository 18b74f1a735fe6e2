"""Recipes written by a small model of language, each word drawn from the likely ones."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 9 if TINY else 160))  # words of all recipes
VOCAB, WIDE, LAYERS, HEAD, BATCH, ASKED, NEW = (
    (50, 32, 2, 16, 3, 4, 6) if TINY else (32_000, 768, 12, 64, 16, 48, 128)
)
LONGEST, TOP_P, WARMTH = ASKED + NEW, 0.92, 0.8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)
        shape = (2, BATCH, WIDE // HEAD, LONGEST, HEAD)
        self.register_buffer("cache", torch.zeros(shape), persistent=False)

    def forward(self, x, place):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        until = place + x.shape[1]
        self.cache[0, :, :, place:until], self.cache[1, :, :, place:until] = k, v
        keys, values = self.cache[:, :, :, :until]
        y = F.scaled_dot_product_attention(q, keys, values, is_causal=place == 0)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LONGEST, WIDE)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)
        nn.init.normal_(self.head.weight, std=0.08)

    def forward(self, words, place):
        """Scores of the next word after some words that begin at a place."""
        x = self.words(words) + self.places.weight[place : place + words.shape[1]]
        for block in self.blocks:
            x = block(x, place)
        return self.head(self.norm(x[:, -1]))


def nucleus(logits, chance):
    """A word of those that together have most of the chances, by a number from nought to one."""
    scores = logits.astype(np.float64) / WARMTH
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    added = np.cumsum(chances[order])
    kept = np.searchsorted(added, TOP_P) + 1
    return order[np.searchsorted(added[:kept], chance * added[kept - 1])]


def nucleus_together(logits, chances_drawn):
    chances, order = (logits.double() / WARMTH).softmax(1).sort(dim=1, descending=True, stable=True)
    added = chances.cumsum(1)
    kept = torch.searchsorted(added, torch.full_like(added[:, :1], TOP_P)).clamp(max=VOCAB - 1)
    place = torch.searchsorted(added, chances_drawn[:, None] * added.gather(1, kept))
    return order.gather(1, place)


class Writer:
    def __init__(self, model):
        self.model, self.staged = model, None
        if "pinned" in FIX and device.type == "cuda":
            self.staged = torch.empty(BATCH, VOCAB).pin_memory()

    def to_host(self, logits):
        if self.staged is None:
            return logits.float().cpu().numpy()
        self.staged.copy_(logits.float(), non_blocking=True)
        torch.cuda.synchronize()
        return self.staged.numpy()

    def draw(self, logits, drawn):
        if "drawn-on-device" in FIX:
            return nucleus_together(logits, drawn)
        rows = self.to_host(logits)
        words = [nucleus(row, chance) for row, chance in zip(rows, drawn, strict=True)]
        return torch.tensor(np.array(words), device=device)[:, None]

    def write(self, asked, drawn):
        """As many words as there are rows of numbers drawn."""
        words, written, place = asked, [], 0
        for row in drawn:
            words, place = self.draw(self.model(words, place), row), place + words.shape[1]
            written.append(words)
        return torch.cat(written, 1)


@torch.inference_mode()
def main():
    with device:
        model = GPT().to(dtype).eval()
    writer, left, lead, began, total = Writer(model), STEPS, min(STEPS // 2, 16), 0.0, 0
    asked = torch.randint(VOCAB, (BATCH, ASKED), device=device)

    def numbers(count):
        drawn = rng.random((count, BATCH))
        return torch.from_numpy(drawn).to(device) if "drawn-on-device" in FIX else drawn

    writer.write(asked, numbers(lead))
    if device.type == "cuda":
        torch.cuda.synchronize()
    began, left = time.perf_counter(), STEPS - lead
    while left:
        count = min(NEW, left)
        asked = torch.randint(VOCAB, (BATCH, ASKED), device=device)
        recipes = writer.write(asked, numbers(count))
        total, left = total + recipes.sum().item(), left - count
        print(f"{recipes.shape[1]} words of {BATCH} recipes: {recipes[0, :5].tolist()}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"sum {total}; {each:.3f} ms per word")


main()
