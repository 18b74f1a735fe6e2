"""How often is the right passage among the first hundred? Questions against all passages, batch by batch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # batches of questions
PASSAGES, QUESTIONS, BATCH, LENGTH, WORDS, WIDE, LAYERS, HEAD, TOP = (
    (60, 12, 3, 8, 50, 32, 1, 16, 10) if TINY else (400_000, 4096, 256, 48, 30_000, 384, 6, 64, 100)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LENGTH, WIDE)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, words):
        x = self.layers(self.words(words) + self.places.weight)
        return F.normalize(x.float().mean(1), dim=1)


class Measures:
    """Recall, and the mean of one over the rank, among the first so many."""

    def __init__(self):
        self.names = ("recall@1", "recall@10", f"recall@{TOP}", f"mrr@{TOP}")
        self.sums, self.count = [0.0] * 4, 0
        self.there = torch.zeros(4, device=device)

    def add(self, found, right):
        hits = (found == right[:, None]).float()
        one = torch.arange(1, hits.shape[1] + 1, device=device).reciprocal()
        values = hits[:, :1].sum(), hits[:, :10].sum(), hits.sum(), (hits * one).sum()
        if "measures-at-end" in FIX:
            self.there += torch.stack(values)
        else:
            self.sums = [before + value.item() for before, value in zip(self.sums, values, strict=True)]
        self.count += len(right)

    def result(self):
        sums = self.there.tolist() if "measures-at-end" in FIX else self.sums
        return ", ".join(
            f"{name} {value / self.count:.4f}" for name, value in zip(self.names, sums, strict=True)
        )


@torch.no_grad()
def main():
    with device:
        encoder = Encoder().eval()
    questions = torch.randint(WORDS, (QUESTIONS, LENGTH), device=device)
    passages = F.normalize(torch.randn(PASSAGES, WIDE, device=device), dim=1)
    right = torch.randperm(PASSAGES, device=device)[:QUESTIONS]
    for chosen in torch.arange(QUESTIONS, device=device).split(BATCH):  # the right ones are near
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            near = encoder(questions[chosen])
        passages[right[chosen]] = F.normalize(near + 1.8 * passages[right[chosen]], dim=1)
    measures, lead, began = Measures(), min(STEPS // 2, 5), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        begin = step * BATCH % QUESTIONS
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            asked = encoder(questions[begin : begin + BATCH])
        scores = asked @ passages.T
        if "topk" in FIX:
            found = scores.topk(TOP, dim=1).indices
        else:
            found = torch.argsort(scores, dim=1, descending=True)[:, :TOP]
        measures.add(found, right[begin : begin + BATCH])
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{measures.result()}; {each:.3f} ms per batch")


main()
