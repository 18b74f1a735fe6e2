"""Continue beginnings of stories: a language model with a memory, a penalty on what has been said."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 192))  # tokens, each of a batch of stories
STORIES, PROMPT, WRITTEN, WORDS, WIDTH, HEADS, LAYERS = (
    (2, 4, 6, 40, 16, 2, 2) if TINY else (4, 48, 96, 50_257, 1024, 16, 24)
)
TEMPERATURE, TOP_K, TOP_P, PENALTY = 0.9, 40, 0.95, 1.2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PROMPT + WRITTEN, WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, words, past=None):
        start = 0 if past is None else past[0][0].shape[2]
        x = self.words(words) + self.places.weight[start : start + words.shape[1]]
        kept = []
        for i, block in enumerate(self.blocks):
            x, one = block(x, None if past is None else past[i])
            kept.append(one)
        return F.linear(self.norm(x[:, -1]), self.words.weight).float(), kept


def penalize(logits, words):
    """Words that a story has already are less likely to come again."""
    if "penalty-at-once" in FIX:
        score = logits.gather(1, words)
        return logits.scatter(1, words, torch.where(score < 0, score * PENALTY, score / PENALTY))
    for i in range(len(logits)):
        for word in set(words[i].tolist()):
            if logits[i, word] < 0:
                logits[i, word] *= PENALTY
            else:
                logits[i, word] /= PENALTY
    return logits


def keep_likely(logits):
    """The likeliest words only: some of them, and of these as many as make up nearly all."""
    least = logits.topk(min(TOP_K, WORDS)).values[:, -1:]
    logits = logits.masked_fill(logits < least, float("-inf"))
    ordered, places = logits.sort(descending=True)
    drop = ordered.softmax(1).cumsum(1) > TOP_P
    drop = torch.cat([torch.zeros_like(drop[:, :1]), drop[:, :-1]], 1)
    return logits.masked_fill(drop.scatter(1, places, drop), float("-inf"))


class Stories:
    """Beginnings, and what has been written so far."""

    def __init__(self, model):
        self.model, self.left = model, 0
        self.figures = []

    def begin(self):
        self.words = torch.randint(WORDS, (STORIES, PROMPT), device=device)
        self.given, self.past, self.left = self.words, None, WRITTEN

    def next(self):
        if self.left == 0:
            self.begin()
        logits, self.past = self.model(self.given, self.past)
        chances = keep_likely(penalize(logits / TEMPERATURE, self.words)).softmax(1)
        self.given = torch.multinomial(chances, 1)
        self.words = torch.cat([self.words, self.given], 1)
        self.left -= 1
        likely = chances.gather(1, self.given).mean()
        self.figures.append(likely if "shown-later" in FIX else likely.item())


@torch.inference_mode()
def main():
    with device:
        model = Writer().to(dtype).eval()
    stories = Stories(model)
    lead, began = min(STEPS // 2, 5), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        stories.next()
        if stories.left == 0:
            print(f"{step + 1} tokens: a story ends with {stories.words[0, -5:].tolist()}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    likely = float(sum(stories.figures)) / len(stories.figures)
    print(f"likely {likely:.4f}; {each:.3f} ms per token")


main()
