"""Which page answers the question? Late interaction: each word of a question looks for its patch."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # batches of questions
ASKED, WORDS, PAGES, PATCHES, EACH, VOCAB, WIDE, LAYERS, HEAD, VECTOR = (
    (3, 5, 12, (6, 10), 4, 40, 32, 1, 16, 8)
    if TINY
    else (64, 32, 512, (600, 1030), 128, 30_000, 512, 6, 64, 128)
)
KEPT = 4  # batches that are different
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Questions(nn.Module):
    """A vector for each word of a question."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(WORDS, WIDE)
        self.layers, self.vector = nn.Sequential(*[Layer() for _ in range(LAYERS)]), nn.Linear(WIDE, VECTOR)

    def forward(self, words):
        return F.normalize(self.vector(self.layers(self.words(words) + self.places.weight)), dim=2)


def pages():
    """What was seen on each page, a vector a patch, some pages with fewer patches: kept on the host."""
    rng = np.random.default_rng(0)
    counts = rng.integers(PATCHES[0], PATCHES[1] + 1, PAGES)
    found = F.normalize(torch.randn(counts.sum(), VECTOR, device=device), dim=1).to(dtype).cpu()
    return [page.clone() for page in found.split(counts.tolist())]


class Retriever:
    def __init__(self, model, index):
        self.model, self.index, self.kept = model, index, None

    def batches(self):
        """Pages, padded to the longest of their batch."""
        if self.kept is not None:
            return self.kept
        padded = (
            pad_sequence(self.index[start : start + EACH], batch_first=True).to(device)
            for start in range(0, len(self.index), EACH)
        )
        if "pages-once" in FIX:
            self.kept = padded = list(padded)
        return padded

    def score(self, questions):
        """Of each word the best patch, summed over the words of a question."""
        scores = []
        for batch in self.batches():
            found = torch.einsum("bnd,csd->bcns", questions, batch)
            scores.append(found.max(3).values.float().sum(2))
        return torch.cat(scores, 1)


def gain(scores, right, top=5):
    """Of each question what it gets for the place of its page."""
    order = np.argsort(-scores, axis=1)
    place = np.argmax(order == right[:, None], axis=1)
    return np.where(place < top, 1 / np.log2(place + 2), 0.0)


@torch.inference_mode()
def main():
    index = pages()
    with device:
        model = Questions().to(dtype).eval()
    asked = torch.randint(VOCAB, (KEPT, ASKED, WORDS), device=device)
    right = np.random.default_rng(1).integers(PAGES, size=(KEPT, ASKED))
    retriever, gains, spreads = Retriever(model, index), [], []
    lead, began = min(STEPS // 2, 3), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        questions = model(asked[step % KEPT])
        spreads.append(questions.std() if "spread-at-end" in FIX else questions.std().item())
        scores = retriever.score(questions).cpu().numpy()
        gains.append(gain(scores, right[step % KEPT]))
        if step % 20 == 0:
            print(f"questions {step * ASKED}: nDCG {np.mean(gains):.4f}, best {scores.max():.3f}")
    spread = sum(float(one) for one in spreads) / len(spreads)
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"nDCG {np.mean(gains):.5f}, spread {spread:.4f}; {each:.3f} ms per batch")


main()
