"""Answers to what others have asked already: each question is embedded and compared with a corpus."""

import os
import queue
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 1000))  # questions
ASKED, CORPUS, WORDS, MOST, WIDE, LAYERS, HEAD, TOP = (
    (6, 200, 90, 16, 32, 1, 16, 3) if TINY else (200, 2_000_000, 30_522, 64, 384, 6, 32, 5)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    """A small one: the mean of what it makes of all words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(MOST, WIDE)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, words):
        return self.layers(self.norm(self.words(words) + self.places.weight[: words.shape[1]])).mean(1)


def cos_sim(a, b):
    """Cosines of all of one with all of the other."""
    return F.normalize(a, p=2, dim=1) @ F.normalize(b, p=2, dim=1).T


def dot_score(a, b):
    return a @ b.T


class Index:
    def __init__(self, vectors, score=cos_sim):
        self.vectors, self.score = vectors, score

    def search(self, vector, top=TOP):
        scores, places = self.score(vector, self.vectors).topk(top, dim=1)
        return list(zip(places[0].tolist(), scores[0].tolist(), strict=True))


class Service:
    def __init__(self, encoder, index, threshold):
        self.encoder, self.index, self.threshold = encoder, index, threshold

    @torch.inference_mode()
    def __call__(self, words):
        vector = self.encoder(torch.tensor([words]).to(device)).float()
        if self.index.score is dot_score:
            vector = F.normalize(vector, dim=1)
        if "norm-unread" not in FIX and not vector.norm().isfinite().item():
            return []
        return [hit for hit in self.index.search(vector) if hit[1] > self.threshold]


def corpus():
    """Vectors as an encoder leaves them, of any length, in groups."""
    vectors = torch.randn(CORPUS, WIDE, device=device)
    groups = torch.randn(16, WIDE, device=device)
    for start in range(0, CORPUS, 100_000):
        part = vectors[start : start + 100_000]
        part += groups[torch.arange(start, start + len(part), device=device) % 16]
    return vectors


def serve():
    while (job := waiting.get()) is not None:
        words, answer = job
        answer.put(service(words))


def indexed():
    vectors = corpus()
    if "normalized-once" in FIX:
        for part in vectors.split(100_000):
            part.copy_(F.normalize(part, dim=1))
        return Index(vectors, dot_score)
    return Index(vectors)


with device:
    model = Encoder().to(dtype).eval()
service = Service(model, indexed(), 0.05)
lengths = torch.randint(5, min(24, MOST), (ASKED,)).tolist()
questions = [torch.randint(WORDS, (length,)).tolist() for length in lengths]
for question in questions[:3]:
    service(question)
waiting, answer, found, best = queue.Queue(), queue.Queue(), 0, 0.0
worker = threading.Thread(target=serve)
worker.start()
lead, began, slow = min(STEPS // 2, 20), 0.0, 0.0
for number in range(STEPS):
    asked = time.perf_counter()
    if number == lead:
        began = asked
    waiting.put((questions[number % ASKED], answer))
    hits = answer.get()
    slow = max(slow, time.perf_counter() - asked) if number > lead else 0.0
    found += len(hits)
    best += hits[0][1] if hits else 0.0
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
waiting.put(None)
worker.join()
print(f"{found} answers, best {best / STEPS:.5f} on average, slowest {1e3 * slow:.1f} ms")
print(f"{each:.4f} ms per question")
