"""What is on these pictures? Zero-shot classification of a test set by a picture and a text encoder."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))  # batches
SIZE, BATCH, CLASSES, SIDE, PATCH, WIDE, TEXT_WIDE, LAYERS, LENGTH, VOCAB, SHARED = (
    (16, 4, 6, 32, 16, 32, 32, 1, 12, 60, 16)
    if TINY
    else (2048, 256, 800, 224, 32, 768, 512, 12, 77, 49_408, 512)
)
HEAD = 16 if TINY else 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width, causal):
        super().__init__()
        self.causal = causal
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), QuickGELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.ln_1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class ImageEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        count = (SIDE // PATCH) ** 2
        self.conv = nn.Conv2d(3, WIDE, PATCH, PATCH, bias=False)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDE) * 0.02)
        self.places = nn.Parameter(torch.randn(1, count + 1, WIDE) * 0.02)
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.blocks = nn.Sequential(*(Block(WIDE, False) for _ in range(LAYERS)))
        self.project = nn.Linear(WIDE, SHARED, bias=False)

    def forward(self, images):
        x = self.conv(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.project(self.ln_post(self.blocks(self.ln_pre(x))[:, 0]))


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, TEXT_WIDE)
        self.places = nn.Parameter(torch.randn(1, LENGTH, TEXT_WIDE) * 0.01)
        self.blocks = nn.Sequential(*(Block(TEXT_WIDE, True) for _ in range(LAYERS)))
        self.ln_final, self.project = nn.LayerNorm(TEXT_WIDE), nn.Linear(TEXT_WIDE, SHARED, bias=False)

    def forward(self, tokens):
        x = self.ln_final(self.blocks(self.words(tokens) + self.places))
        return self.project(x[torch.arange(len(x), device=x.device), tokens.argmax(1)])


def tokenize(names):
    """A photo of a …: a begin, a few pieces, an end (the largest number), then zeros."""
    tokens = torch.zeros(len(names), LENGTH, dtype=torch.long)
    for row, name in zip(tokens, names, strict=True):
        letters = [(ord(c) * 31 + i) % (VOCAB - 10) for i, c in enumerate(name[:5])]
        pieces = [VOCAB - 2, 5, 6, 7, *letters, VOCAB - 1]
        row[: len(pieces)] = torch.tensor(pieces)
    return tokens


class ZeroShot:
    """Answers for pictures, given the names of classes."""

    def __init__(self, names):
        with device:
            self.visual, self.textual = ImageEncoder().to(dtype).eval(), TextEncoder().to(dtype).eval()
        self.names, self.prompts, self.known = names, tokenize(names).to(device), None
        self.mean = torch.tensor([122.77, 116.75, 104.09], device=device, dtype=dtype).view(3, 1, 1)
        self.scale = torch.tensor([68.5, 66.6, 70.3], device=device, dtype=dtype).view(3, 1, 1)

    def class_weights(self):
        if "texts-once" in FIX and self.known is not None:
            return self.known
        self.known = F.normalize(self.textual(self.prompts), dim=-1)
        return self.known

    @torch.no_grad()
    def __call__(self, images):
        pixels = (images.to(dtype) - self.mean) / self.scale
        features = F.normalize(self.visual(pixels), dim=-1)
        return (100.0 * features @ self.class_weights().t()).softmax(-1)


def main():
    images = torch.randint(0, 256, (SIZE, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    labels = torch.randint(CLASSES, (SIZE,), device=device)
    classify = ZeroShot([f"{i}-thing" for i in range(CLASSES)])
    lead, began, right, seen = min(STEPS // 2, 4), 0.0, 0, 0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        first = step * BATCH % SIZE
        batch, wanted = images[first : first + BATCH], labels[first : first + BATCH]
        top = classify(batch).topk(5).indices
        hits = (top == wanted[:, None]).any(1).sum()
        right += hits if "count-at-end" in FIX else hits.item()
        seen += len(batch)
    right = int(right)  # waits, too
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"top-5 accuracy {right / seen:.5f}; {each:.3f} ms per batch")


main()
