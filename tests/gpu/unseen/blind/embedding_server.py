"""Sentence embeddings as a service: clients put texts into a queue, a thread makes batches of them."""

import contextlib
import os
import queue
import random
import threading
import time
import zlib
from concurrent.futures import Future

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
CLIENTS, MAX_BATCH, MAX_WAIT = (4, 8, 0.010) if TINY else (16, 32, 0.010)
BATCHES = int(os.environ.get("STEPS", 4 if TINY else 200))
DIM, LAYERS, VOCAB, LONGEST = (32, 2, 500, 64) if TINY else (768, 12, 30_000, 256)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, DIM // 32, 32)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(LONGEST, DIM)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(DIM)

    def forward(self, ids):
        kept = ids != 0
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, kept[:, None, None, :])
        x = (self.norm(x) * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True)
        return F.normalize(x.float(), dim=-1)


def tokenize(text):
    return [1 + zlib.crc32(word.encode()) % (VOCAB - 1) for word in text.split()][:LONGEST]


class Server:
    def __init__(self):
        with device:
            self.model = Encoder().to(torch.bfloat16).eval()
        self.queue, self.sizes, self.seconds = queue.Queue(), [], []
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def submit(self, text):
        answer = Future()
        self.queue.put((tokenize(text), answer))
        return answer

    def collect(self):
        """A batch: what arrives within the time that the first request may wait."""
        batch = [self.queue.get()]
        deadline = time.monotonic() + (0 if "no-wait" in FIX else MAX_WAIT)
        with contextlib.suppress(queue.Empty):
            while len(batch) < MAX_BATCH:
                batch.append(self.queue.get(timeout=max(0.0, deadline - time.monotonic())))
        return batch

    @torch.inference_mode()
    def answer(self, batch):
        longest = max(len(tokens) for tokens, _ in batch)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in batch], device=device)
        vectors = self.model(ids)
        if "one-copy" in FIX:
            vectors = vectors.cpu()
        for vector, (_, answer) in zip(vectors, batch, strict=True):
            answer.set_result(vector.cpu().numpy())

    def run(self):
        last = time.perf_counter()
        while not self.closed.is_set():
            batch = [item for item in self.collect() if item is not None]
            if batch:
                self.answer(batch)
                self.sizes.append(len(batch))
                self.seconds.append(time.perf_counter() - last)
            last = time.perf_counter()

    def close(self):
        self.closed.set()
        self.queue.put(None)
        self.thread.join()


class Client(threading.Thread):
    """Asks, waits for the answer, asks again."""

    def __init__(self, server, seed, vocabulary):
        super().__init__()
        self.server, self.random, self.vocabulary = server, random.Random(seed), vocabulary
        self.latencies, self.norm = [], 0.0

    def run(self):
        for _ in range(BATCHES):
            text = " ".join(self.random.choices(self.vocabulary, k=self.random.randint(8, LONGEST // 4)))
            start = time.perf_counter()
            vector = self.server.submit(text).result()
            self.latencies.append(time.perf_counter() - start)
            self.norm = float((vector**2).sum())


def main():
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(3000)]
    server = Server()
    for _ in range(3):
        server.submit("a few words to warm up with").result()
    clients = [Client(server, seed, vocabulary) for seed in range(CLIENTS)]
    start = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    elapsed = time.perf_counter() - start
    server.close()
    served = server.sizes[3:]
    latencies = sorted(value for client in clients for value in client.latencies)
    per_batch = sum(server.seconds[3:]) / len(served)
    print(
        f"{len(latencies)} requests, {sum(served) / len(served):.1f} a batch, batch {per_batch * 1e3:.4f} ms"
    )
    print(f"p50 {latencies[len(latencies) // 2] * 1e3:.2f} ms, norm {clients[0].norm:.3f}")
    rate = len(latencies) / elapsed
    print(f"{elapsed / BATCHES:.6f} s for {CLIENTS} requests, {rate:.0f} a second")


if __name__ == "__main__":
    main()
