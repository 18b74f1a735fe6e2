"""Poems that go on: a language model reads many beginnings and writes the rest, a token of all at a time."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 400))  # tokens of all poems
POEMS, BEGINNING, WRITTEN, WIDE, LAYERS, HEAD, VOCABULARY = (
    (2, 5, 4, 32, 2, 16, 64) if TINY else (64, 768, 128, 1024, 24, 64, 32_000)
)
END = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Grown:
    """Keys and values of a layer, to which those of new tokens are appended."""

    def __init__(self):
        self.k = self.v = None

    def add(self, k, v):
        if self.k is not None:
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.k, self.v = k, v
        return k, v


class Reserved:
    """Keys and values of a layer in memory for as many tokens as there will be."""

    def __init__(self):
        shape = POEMS, WIDE // HEAD, BEGINNING + WRITTEN, HEAD
        self.k, self.v = (torch.empty(shape, device=device, dtype=dtype) for _ in range(2))
        self.count = 0

    def add(self, k, v):
        begin, self.count = self.count, self.count + k.shape[2]
        self.k[:, :, begin : self.count], self.v[:, :, begin : self.count] = k, v
        return self.k[:, :, : self.count], self.v[:, :, : self.count]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x, cache):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        k, v = cache.add(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDE), nn.Embedding(BEGINNING + WRITTEN, WIDE)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCABULARY, bias=False)

    def forward(self, words, begin, caches):
        x = self.words(words) + self.places.weight[begin : begin + words.shape[1]]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return self.head(self.norm(x[:, -1])).float()


def empty():
    return [Reserved() if "reserved" in FIX else Grown() for _ in range(LAYERS)]


@torch.inference_mode()
def main():
    with device:
        model = Model().to(dtype).eval()
    lead, began, sure, lines = min(STEPS // 2, 8), 0.0, torch.zeros((), device=device), 0
    words, count, caches = None, WRITTEN, []
    done = torch.zeros(POEMS, dtype=torch.bool, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        asks = "ends-asked-rarely" not in FIX or count % 16 == 0
        if count == WRITTEN or (asks and done.all()):
            caches, count = empty(), 0
            words = torch.randint(1, VOCABULARY, (POEMS, BEGINNING), device=device)
            done = torch.zeros(POEMS, dtype=torch.bool, device=device)
        chances = F.softmax(model(words, count and BEGINNING + count - 1, caches) / 0.8, dim=1)
        best, words = chances.max(1, keepdim=True)
        words = words.masked_fill(done[:, None], END)
        done |= words[:, 0] == END
        sure += best.mean()
        count += 1
        lines += POEMS
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{lines} tokens, sure {sure.item() / STEPS:.6f}; {each:.4f} ms per token of all")


main()
