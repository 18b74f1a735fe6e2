"""Scanned pages are written down: an encoder sees a page, a decoder writes it, a token after the other."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 4))  # batches of pages
KNOWN, BATCH, SIDE, PATCH, LENGTH, VOCAB, WIDE, SEES, WRITES, HEAD = (
    (2, 2, 32, 8, 8, 50, 32, 1, 2, 16) if TINY else (3, 32, 448, 16, 192, 50_048, 1024, 6, 8, 64)
)
START, END = 0, 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def keys(self, seen):
        return tuple(one(seen).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.k, self.v))

    def forward(self, x, keys, causal=False):
        q = self.q(x).unflatten(2, (-1, HEAD)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, *keys, is_causal=causal).transpose(1, 2).flatten(2))


class SeeingLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attend = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE), Attention()
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attend(y, self.attend.keys(y))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class WritingLayer(SeeingLayer):
    """Attention to what was written, and to the page."""

    def __init__(self):
        super().__init__()
        self.norm3, self.read = nn.LayerNorm(WIDE), Attention()

    def forward(self, x, page):
        y = self.norm1(x)
        x = x + self.attend(y, self.attend.keys(y), causal=True)
        x = x + self.read(self.norm3(x), self.read.keys(page))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def step(self, x, at, kept, page_keys):
        """The same for the newest token; keys and values of the others are kept."""
        y = self.norm1(x)
        for whole, new in zip(kept, self.attend.keys(y), strict=True):
            whole[:, :, at : at + 1] = new
        x = x + self.attend(y, tuple(whole[:, :, : at + 1] for whole in kept))
        x = x + self.read(self.norm3(x), page_keys)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.spots = nn.Conv2d(1, WIDE, PATCH, PATCH), (SIDE // PATCH) ** 2
        self.where = nn.Parameter(0.02 * torch.randn(1, self.spots, WIDE))
        self.see = nn.ModuleList(SeeingLayer() for _ in range(SEES))
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        self.write = nn.ModuleList(WritingLayer() for _ in range(WRITES))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(2))
        self.head = nn.Linear(WIDE, VOCAB, bias=False)

    def look(self, pages):
        x = self.patches(pages).flatten(2).transpose(1, 2) + self.where
        for layer in self.see:
            x = layer(x)
        return self.norms[0](x)

    def decode(self, written, page):
        x = self.words(written) + self.places.weight[: written.shape[1]]
        for layer in self.write:
            x = layer(x, page)
        return self.head(self.norms[1](x))

    def generate(self, pages):
        """The likeliest token at each place; after the end there is nothing but ends."""
        page, written = self.look(pages), torch.full((len(pages), 1), START, device=device)
        ended = torch.zeros(len(pages), dtype=torch.bool, device=device)
        for at in range(LENGTH):
            token = self.decode(written, page)[:, -1].float().argmax(1)
            token = torch.where(ended, END, token)
            written, ended = torch.cat([written, token[:, None]], 1), ended | (token == END)
            if ("ends-rarely" not in FIX or at % 32 == 31) and ended.all():
                break
        return written

    def generate_with_keys(self, pages):
        page, written = self.look(pages), torch.full((len(pages), LENGTH + 1), START, device=device)
        shape = (2, len(pages), WIDE // HEAD, LENGTH, HEAD)
        kept = [torch.empty(shape, device=device, dtype=page.dtype) for _ in self.write]
        page_keys = [layer.read.keys(page) for layer in self.write]
        ended = torch.zeros(len(pages), dtype=torch.bool, device=device)
        for at in range(LENGTH):
            x = self.words(written[:, at : at + 1]) + self.places.weight[at]
            for layer, own, of_page in zip(self.write, kept, page_keys, strict=True):
                x = layer.step(x, at, own, of_page)
            token = self.head(self.norms[1](x))[:, -1].float().argmax(1)
            written[:, at + 1] = token = torch.where(ended, END, token)
            ended = ended | (token == END)
            if ended.all():
                break
        return written[:, : at + 2]


@torch.inference_mode()
def main():
    pages = [torch.rand(BATCH, 1, SIDE, SIDE, device=device, dtype=dtype) for _ in range(KNOWN)]
    with device:
        model = Reader()
        model.head.weight[END] = -model.head.weight[END + 1]
        model = model.to(dtype).eval()
    lead, began, count, total = 1, 0.0, 0, 0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began, count = time.perf_counter(), 0
        read = model.generate_with_keys if "keys-kept" in FIX else model.generate
        texts = read(pages[step % KNOWN])
        count += texts.shape[1] - 1
        total += (texts > END).sum().item()
        print(f"batch {step}: {texts.shape[1] - 1} tokens for each of {BATCH} pages")
    each = 1e3 * (time.perf_counter() - began) / max(count, 1)
    print(f"{total} tokens on {BATCH * STEPS} pages; {each:.3f} ms per token")


main()
