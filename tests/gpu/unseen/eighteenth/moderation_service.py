"""Is this message allowed? A language model reads rules and a message, and says yes or no."""

import contextlib
import os
import queue
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))  # batches
RULES, MESSAGE, BATCH, FORUMS, VOCAB, WIDE, LAYERS, HEAD = (
    (16, (3, 8), 2, 4, 60, 32, 2, 16) if TINY else (1536, (16, 96), 8, 24, 32_000, 1024, 16, 64)
)
YES, NO = 5, 6
LENGTH = RULES + MESSAGE[1]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class GuardLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate, self.up = (nn.Linear(WIDE, 3 * WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDE, WIDE, bias=False)

    def forward(self, x, before=None, mask=None):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        own = k, v
        if before is not None:
            k, v = (torch.cat([a.expand(len(x), -1, -1, -1), b], 2) for a, b in zip(before, own, strict=True))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), own


class Guard(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers, self.norm = nn.ModuleList(GuardLayer() for _ in range(LAYERS)), nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)

    def forward(self, words, last):
        """Words that may follow the last one of each text."""
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(self.norm(x[torch.arange(len(x), device=device), last]))

    def remember(self, words):
        """Keys and values of what all texts begin with."""
        x, kept = self.words(words)[None] + self.places.weight[: len(words)], []
        for layer in self.layers:
            x, own = layer(x)
            kept.append(own)
        return kept

    def follow(self, words, last, kept):
        before = kept[0][0].shape[2]
        count = words.shape[1]
        mask = torch.ones(count, before + count, dtype=torch.bool, device=device).tril(before)
        x = self.words(words) + self.places.weight[before : before + count]
        for layer, own in zip(self.layers, kept, strict=True):
            x, _ = layer(x, own, mask)
        return self.head(self.norm(x[torch.arange(len(x), device=device), last]))


class Moderator:
    """Rules, then a message, then the question; all of it is padded on the right."""

    def __init__(self):
        with device:
            self.model = Guard().to(dtype).eval()
        self.rules = torch.randint(10, VOCAB, (RULES,)).tolist()
        self.kept = None

    @torch.inference_mode()
    def __call__(self, messages):
        if "rules-kept" in FIX:
            if self.kept is None:
                self.kept = self.model.remember(torch.tensor(self.rules).to(device))
            texts = messages
        else:
            texts = [self.rules + message for message in messages]
        longest = max(len(text) for text in texts)
        words = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        last = torch.tensor([len(text) - 1 for text in texts])
        if "pinned" in FIX and device.type == "cuda":
            words, last = words.pin_memory(), last.pin_memory()
        words, last = words.to(device, non_blocking=True), last.to(device, non_blocking=True)
        logits = self.model.follow(words, last, self.kept) if self.kept else self.model(words, last)
        return logits[:, [YES, NO]].float().softmax(1)[:, 0].tolist()


def serve(moderator, waiting):
    """The worker: as many messages as wait, up to a batch, which they mostly fill."""
    while (job := waiting.get()) is not None:
        jobs = [job]
        with contextlib.suppress(queue.Empty):
            while len(jobs) < BATCH:
                jobs.append(waiting.get(timeout=0.002))
        for (_, answer), allowed in zip(jobs, moderator([text for text, _ in jobs]), strict=True):
            answer.put(allowed)


def forum(number, waiting, results):
    """A message after the other, each when the last one is answered."""
    rng, answer = torch.Generator().manual_seed(number), queue.Queue()
    for _ in range(STEPS * BATCH // FORUMS):
        count = torch.randint(*MESSAGE, (1,), generator=rng).item()
        message = torch.randint(10, VOCAB, (count,), generator=rng).tolist()
        waiting.put((message, answer))
        results.append((answer.get(), time.perf_counter()))


def main():
    moderator, waiting, results = Moderator(), queue.Queue(), []
    for _ in range(3):
        moderator([[11] * MESSAGE[0]] * BATCH)
    worker = threading.Thread(target=serve, args=(moderator, waiting))
    forums = [threading.Thread(target=forum, args=(i, waiting, results)) for i in range(FORUMS)]
    worker.start()
    began = time.perf_counter()
    for one in forums:
        one.start()
    for one in forums:
        one.join()
    waiting.put(None)
    worker.join()
    spent = max(when for _, when in results) - began
    allowed = sum(chance for chance, _ in results) / len(results)
    each = 1e3 * spent * BATCH / len(results)
    print(f"{len(results)} messages, allowed {allowed:.5f}; {each:.3f} ms per batch")


main()
