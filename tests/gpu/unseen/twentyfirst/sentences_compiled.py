"""Texts become vectors in bulk: a small language model, compiled, with batches as long as they must be."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 300))  # batches
TEXTS, BATCH, LONGEST, WORDS, WIDE, LAYERS, HEAD = (
    (100, 4, 40, 60, 32, 2, 16) if TINY else (20000, 16, 512, 30522, 512, 6, 64)
)
PAD, ROUND = 0, 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LONGEST, WIDE)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens, last):
        """The last word of a text has seen all of it."""
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x[torch.arange(len(x), device=x.device), last].float(), dim=1)


def written():
    """Most texts are short, few are as long as may be; the words of each."""
    lengths = (torch.rand(TEXTS).pow(6) * (LONGEST - 8)).long() + 8
    words = torch.randint(1, WORDS, (int(lengths.sum()),))
    return words.split(lengths.tolist())


def padded(texts):
    longest = max(len(text) for text in texts)
    if "rounded-lengths" in FIX:
        longest = min(-(-longest // ROUND) * ROUND, LONGEST)
    tokens = torch.full((len(texts), longest), PAD)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    last = torch.tensor([len(text) - 1 for text in texts])
    return tokens.to(device), last.to(device)


@torch.no_grad()
def main():
    texts = written()
    with device:
        model = Encoder()
    encode = model = model.to(dtype).eval()
    if device.type == "cuda":
        encode = torch.compile(model, mode="reduce-overhead", dynamic=True)
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    vectors = torch.zeros(STEPS * BATCH, WIDE, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = [texts[(step * BATCH + i) % TEXTS] for i in range(BATCH)]
        rows = vectors[step * BATCH : (step + 1) * BATCH]
        rows.copy_(encode(*padded(chosen)))
        if "mean-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = rows.mean(0).norm().item()
        if step % 50 == 0:
            print(f"batch {step}: length of the mean {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    alike = (vectors[:BATCH] @ vectors.T).mean().item()
    print(f"alike {alike:.5f}, length {shown:.5f}; {each:.3f} ms per batch")


main()
