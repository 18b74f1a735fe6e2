"""Rerank passages as a service: clients put queries into a queue, a thread scores them in batches."""

import os
import queue
import threading
import time
from concurrent.futures import Future

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 180))  # requests
CLIENTS, PASSAGES, TOKENS, VOCAB, WIDTH, HEADS, LAYERS = (
    (3, 4, 16, 100, 16, 2, 2) if TINY else (6, 40, 160, 30522, 384, 12, 6)
)
MAX_BATCH, MAX_WAIT, THINKING = 32, 0.04, 0.004
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_num_threads(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH)
        x = self.norm1(x + self.proj(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class CrossEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers, self.head = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.Linear(WIDTH, 1)

    def forward(self, ids):
        x = self.layers(self.embed(ids) + self.place.weight[: ids.size(1)])
        return self.head(x[:, 0]).squeeze(-1)


class Reranker:
    """Takes requests from a queue; a batch is scored when it is full or has waited long enough."""

    def __init__(self, model):
        self.model, self.requests, self.sizes = model, queue.Queue(), []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def submit(self, ids):
        future = Future()
        self.requests.put((ids, future))
        return future

    def take(self, batch, deadline):
        """One more request into the batch; false if none came in time."""
        try:
            if "take-what-is-there" in FIX:
                batch.append(self.requests.get_nowait())
            else:
                batch.append(self.requests.get(timeout=max(deadline - time.monotonic(), 0)))
        except queue.Empty:
            return False
        return True

    def next_batch(self):
        batch = [self.requests.get()]
        deadline = time.monotonic() + MAX_WAIT
        while len(batch) < MAX_BATCH and batch[-1] is not None and self.take(batch, deadline):
            pass
        return batch

    @torch.inference_mode()
    def serve(self):
        ending = False
        while not ending:
            batch = self.next_batch()
            ending = batch[-1] is None
            batch = [one for one in batch if one is not None]
            if not batch:
                break
            ids = torch.cat([ids for ids, _ in batch])
            if "pinned" in FIX and device.type == "cuda":
                ids = ids.pin_memory()
            scores = self.model(ids.to(device, non_blocking="pinned" in FIX)).float().cpu()
            self.sizes.append(len(batch))
            for (_, future), own in zip(batch, scores.split([len(ids) for ids, _ in batch]), strict=True):
                future.set_result(own)


def client(number, answers):
    """Asks, reads the best passages, thinks, asks again."""
    generator = torch.Generator().manual_seed(number)
    while True:
        with lock:
            if counted[0] >= STEPS:
                return
            counted[0] += 1
        ids = torch.randint(VOCAB, (PASSAGES, TOKENS), generator=generator)
        asked = time.perf_counter()
        scores = reranker.submit(ids).result()
        best = scores.topk(3).indices.tolist()
        answers.append((time.perf_counter() - asked, time.perf_counter(), best))
        time.sleep(THINKING)


model = CrossEncoder().to(device).eval()
if device.type == "cuda":
    model = model.half()
with torch.inference_mode():
    for many in (1, CLIENTS):
        model(torch.zeros(many * PASSAGES, TOKENS, dtype=torch.long, device=device)).cpu()
reranker, lock, counted, answers = Reranker(model), threading.Lock(), [0], []
began = time.perf_counter()
clients = [threading.Thread(target=client, args=(i, answers)) for i in range(CLIENTS)]
for one in clients:
    one.start()
for one in clients:
    one.join()
spent = max(ended for _, ended, _ in answers) - began
reranker.requests.put(None)
reranker.thread.join()
waits = sorted(wait for wait, _, _ in answers)
mean = sum(reranker.sizes) / len(reranker.sizes)
print(f"{len(answers)} requests, {mean:.2f} a batch, median latency {1e3 * waits[len(waits) // 2]:.1f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per request")
