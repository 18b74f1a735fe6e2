"""Long articles told in a few words: an encoder reads them, a decoder writes, many articles at a time."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 10 if TINY else 320))  # tokens of each summary, all batches together
BATCH, ARTICLE, SUMMARY, VOCAB, WIDE, HEAD, LAYERS = (
    (2, 12, 5, 50, 32, 16, 1) if TINY else (48, 1024, 64, 32_128, 1024, 64, 12)
)
END = 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


def heads(x):
    return x.unflatten(2, (-1, HEAD)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.enter = nn.RMSNorm(WIDE), nn.Linear(WIDE, 4 * WIDE, bias=False)
        self.leave = nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x):
        return x + self.leave(F.relu(self.enter(self.norm(x))))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed = nn.RMSNorm(WIDE), FeedForward()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x):
        q, k, v = map(heads, self.qkv(self.norm(x)).chunk(3, -1))
        return self.feed(x + self.out(joined(F.scaled_dot_product_attention(q, k, v))))


class DecoderLayer(nn.Module):
    """Looks at the words written so far, then at the article."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.feed = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE), FeedForward()
        self.qkv, self.out1 = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.q, self.out2 = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.k, self.v = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.kept = None

    def of_article(self, memory):
        if "cross-kept" not in FIX:
            return heads(self.k(memory)), heads(self.v(memory))
        if self.kept is None:
            self.kept = heads(self.k(memory)).contiguous(), heads(self.v(memory)).contiguous()
        return self.kept

    def forward(self, x, memory, cache, at):
        q, k, v = map(heads, self.qkv(self.norm1(x)).chunk(3, -1))
        cache[0][:, :, at], cache[1][:, :, at] = k[:, :, 0], v[:, :, 0]
        y = F.scaled_dot_product_attention(q, cache[0][:, :, : at + 1], cache[1][:, :, : at + 1])
        x = x + self.out1(joined(y))
        k, v = self.of_article(memory)
        y = F.scaled_dot_product_attention(heads(self.q(self.norm2(x))), k, v)
        return self.feed(x + self.out2(joined(y)))


class Summarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(ARTICLE, WIDE)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)
        shape = (LAYERS, 2, BATCH, WIDE // HEAD, SUMMARY, HEAD)
        self.register_buffer("cache", torch.zeros(shape), persistent=False)

    def encode(self, articles):
        x = self.words(articles) + self.places.weight[: articles.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        for layer in self.decoder:
            layer.kept = None
        return self.norm1(x)

    def decode(self, words, memory, at):
        x = self.words(words) + self.places.weight[at]
        for layer, cache in zip(self.decoder, self.cache, strict=True):
            x = layer(x, memory, cache, at)
        return self.head(self.norm2(x))[:, -1]

    @torch.inference_mode()
    def generate(self, articles, most):
        """Summaries of a batch, the likeliest word each time."""
        memory = self.encode(articles)
        words = torch.zeros(BATCH, 1, dtype=torch.long, device=device)
        ended, written = torch.zeros(BATCH, dtype=torch.bool, device=device), []
        for at in range(most):
            chosen = self.decode(words, memory, at).argmax(-1)
            chosen = torch.where(ended, END, chosen)
            ended |= chosen == END
            written.append(chosen)
            words = chosen[:, None]
            if ("ended-rarely" not in FIX or at % 16 == 15) and ended.all():
                break
        return torch.stack(written, 1)


def main():
    with device:
        model = Summarizer().to(dtype).eval()
    articles = torch.randint(2, VOCAB, (8, BATCH, ARTICLE), generator=torch.Generator().manual_seed(0))
    model.generate(articles[0].to(device), 2)
    if device.type == "cuda":
        torch.cuda.synchronize()
    began, made, unlike, batch = time.perf_counter(), 0, 0, 0
    while made < STEPS:
        summaries = model.generate(articles[batch % 8].to(device), min(SUMMARY, STEPS - made)).cpu()
        made, batch = made + summaries.shape[1], batch + 1
        unlike += len(summaries.unique())
    each = 1e3 * (time.perf_counter() - began) / made
    print(f"{batch} batches, {unlike} words in use; {each:.3f} ms per token of a batch")


main()
