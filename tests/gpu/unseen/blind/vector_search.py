"""The nearest neighbours of many queries among two million vectors: exact, without an index library."""

import os
import time
from dataclasses import dataclass

import numpy as np
import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ


@dataclass
class Config:
    vectors: int = 4000 if TINY else 2_000_000
    dim: int = 16 if TINY else 192
    queries: int = 8 if TINY else 256
    chunk: int = 1000 if TINY else 250_000
    k: int = 10
    batches: int = int(os.environ.get("STEPS", 4 if TINY else 12))


config = Config()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1234)


class FlatL2:
    """Brute force over chunks, so that the device's memory suffices for any number of vectors."""

    def __init__(self, dim, device):
        self.dim, self.device = dim, device
        self.vectors = torch.empty(0, dim)
        self.half_norms = None

    def add(self, vectors):
        self.vectors = torch.cat([self.vectors, vectors]) if len(self.vectors) else vectors
        if "resident" in FIX:
            self.vectors = self.vectors.to(self.device)
        elif "pinned" in FIX and self.device.type == "cuda":
            self.vectors = self.vectors.pin_memory()
        if "one-product" in FIX:
            self.half_norms = -0.5 * self.vectors.square().sum(1)

    def __len__(self):
        return len(self.vectors)

    def chunks(self):
        for start in range(0, len(self), config.chunk):
            yield (
                start,
                self.vectors[start : start + config.chunk].to(self.device, non_blocking="pinned" in FIX),
            )

    def distances(self, queries, chunk, start):
        if self.half_norms is not None:
            norms = self.half_norms[start : start + len(chunk)].to(self.device)
            return queries.square().sum(1, keepdim=True), torch.addmm(norms, queries, chunk.T)
        q2 = queries.pow(2).sum(1, keepdim=True)
        c2 = chunk.pow(2).sum(1)
        return None, q2 + c2 - 2 * (queries @ chunk.T)

    @torch.no_grad()
    def search(self, queries, k):
        queries = queries.to(self.device)
        best = torch.full((len(queries), k), float("inf"), device=self.device)
        ids = torch.full((len(queries), k), -1, dtype=torch.long, device=self.device)
        for start, chunk in self.chunks():
            q2, matrix = self.distances(queries, chunk, start)
            if q2 is None:
                found, places = matrix.topk(k, dim=1, largest=False)
            else:  # the largest of q·x - |x|²/2 are the nearest
                found, places = matrix.topk(k, dim=1)
                found = q2 - 2 * found
            best, order = torch.cat([best, found], 1).topk(k, dim=1, largest=False)
            ids = torch.cat([ids, places + start], 1).gather(1, order)
        return best.clamp(min=0).sqrt().cpu().numpy(), ids.cpu().numpy()


class Recall:
    def __init__(self):
        self.hits, self.seen = {1: 0, 10: 0}, 0

    def update(self, ids, truth):
        for k in self.hits:
            self.hits[k] += int((ids[:, :k] == truth[:, None]).any(1).sum())
        self.seen += len(truth)

    def __str__(self):
        return ", ".join(f"recall@{k} {hits / self.seen:.4f}" for k, hits in self.hits.items())


def build():
    """Embeddings of a corpus, as a model on the device would leave them in host memory."""
    index = FlatL2(config.dim, device)
    corpus = torch.empty(config.vectors, config.dim)
    for start in range(0, config.vectors, config.chunk):
        count = min(config.chunk, config.vectors - start)
        corpus[start : start + count] = torch.randn(count, config.dim, device=device)
    index.add(corpus)
    return index, corpus


def requests(corpus):
    """Queries near known vectors, so that the answer can be checked."""
    rng = np.random.default_rng(5)
    for _ in range(config.batches):
        truth = rng.integers(0, config.vectors, config.queries)
        yield corpus[truth] + 0.3 * torch.randn(config.queries, config.dim), truth


def main():
    start = time.perf_counter()
    index, corpus = build()
    print(f"{len(index)} vectors of {config.dim} numbers added in {time.perf_counter() - start:.1f} s")
    recall, times, mean = Recall(), [], 0.0
    for number, (queries, truth) in enumerate(requests(corpus)):
        start = time.perf_counter()
        found, ids = index.search(queries, config.k)
        recall.update(ids, truth)
        times.append(time.perf_counter() - start)
        mean = float(found.mean())
        if number % 5 == 0:
            print(
                f"batch {number}: {config.queries / times[-1]:.0f} queries a second, mean distance {mean:.3f}"
            )
    times = times[max(1, len(times) // 4) :]
    print(f"{recall}, mean distance {mean:.4f}; {1e3 * sum(times) / len(times):.4f} ms per batch of queries")


if __name__ == "__main__":
    main()
