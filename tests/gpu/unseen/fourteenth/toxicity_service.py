"""Is a comment rude? Posts of comments wait in a queue, and a worker answers a batch of them."""

import contextlib
import os
import queue
import random
import threading
import time
import zlib

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200)) // 2 * 2  # batches that are answered
SITES, COMMENTS, POSTS, LONGEST, WORDS, WIDTH, HEADS, LAYERS = (
    (4, 2, 2, 16, 50, 16, 2, 2) if TINY else (8, 8, 4, 512, 30_522, 768, 12, 12)
)
BATCH, WAIT = COMMENTS * POSTS, 0.02
PAD, BEGIN, END, LABELS = 0, 1, 2, ("toxic", "severe", "obscene", "threat", "insult", "hate")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class Tokenizer:
    """Words are numbers; texts become lists of the same length."""

    def __call__(self, texts):
        rows = []
        for text in texts:
            row = [3 + zlib.crc32(one.encode()) % (WORDS - 3) for one in text.split()]
            rows.append([BEGIN, *row[: LONGEST - 2], END])
        longest = max(map(len, rows)) if "longest-of-batch" in FIX else LONGEST
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]), torch.tensor(mask)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        qkv = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pool, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, len(LABELS))

    def forward(self, words, mask):
        x = self.norm(self.words(words) + self.places.weight[: words.shape[1]])
        mask = mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.pool(x[:, 0]).tanh())


class Service:
    def __init__(self):
        self.model, self.tokenize = Classifier().to(device, dtype).eval(), Tokenizer()
        self.waiting = queue.Queue()
        self.batches = 0

    @torch.inference_mode()
    def predict(self, texts):
        words, mask = self.tokenize(texts)
        if "pinned" in FIX and device.type == "cuda":
            words, mask = words.pin_memory(), mask.pin_memory()
        words, mask = words.to(device, non_blocking=True), mask.to(device, non_blocking=True)
        return self.model(words, mask).float().sigmoid().cpu().tolist()

    def work(self):
        """Take what waits, as much as fits, and answer it."""
        while True:
            jobs = [self.waiting.get()]
            with contextlib.suppress(queue.Empty):
                until = time.perf_counter() + WAIT
                while jobs[-1] is not None and len(jobs) < POSTS:
                    jobs.append(self.waiting.get(timeout=max(until - time.perf_counter(), 0.0)))
            stop = jobs[-1] is None
            jobs = [job for job in jobs if job is not None]
            if jobs:
                found = iter(self.predict([text for texts, _ in jobs for text in texts]))
                self.batches += 1
                for texts, answer in jobs:
                    answer.put([dict(zip(LABELS, next(found), strict=True)) for _ in texts])
            if stop:
                return


def site(service, number, posts, answers):
    """A forum that sends its new comments, and waits until it may show them."""
    rng, answer = random.Random(number), queue.Queue()
    common = [f"word{i}" for i in range(2000)]
    for _ in range(posts):
        texts = [" ".join(rng.choices(common, k=rng.randint(4, 58))) for _ in range(COMMENTS)]
        asked = time.perf_counter()
        service.waiting.put((texts, answer))
        found = answer.get()
        answers.append((time.perf_counter() - asked, sum(one["toxic"] for one in found) / len(found)))


def main():
    service, answers = Service(), []
    for _ in range(3):
        service.predict(["how are you"] * BATCH)
    posts = STEPS * POSTS // SITES
    worker = threading.Thread(target=service.work)
    sites = [threading.Thread(target=site, args=(service, i, posts, answers)) for i in range(SITES)]
    began = time.perf_counter()
    worker.start()
    for one in sites:
        one.start()
    for one in sites:
        one.join()
    spent = time.perf_counter() - began
    service.waiting.put(None)
    worker.join()
    waits = sorted(wait for wait, _ in answers)
    toxic = sum(part for _, part in answers) / len(answers)
    median = 1e3 * waits[len(waits) // 2]
    print(f"{len(answers)} posts in {service.batches} batches, median latency {median:.1f} ms")
    print(f"toxic {toxic:.4f} on average; {1e3 * spent / service.batches:.3f} ms per batch")


main()
