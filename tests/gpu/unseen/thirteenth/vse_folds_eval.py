"""Which of five captions belongs to which picture? A test in folds, after the training of two encoders."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))  # folds
FOLD, EACH, BATCH, REGIONS, FEATURES, LENGTH, VOCAB, WORD, WIDE = (
    (6, 5, 10, 4, 12, 8, 40, 8, 16) if TINY else (200, 5, 200, 36, 2048, 24, 10_000, 300, 1024)
)
KEPT = 3  # folds that are different
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Pictures(nn.Module):
    """Regions of a picture, each by what a detector saw there, and their mean."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(FEATURES, WIDE)
        self.mlp = nn.Sequential(nn.Linear(FEATURES, WIDE // 2), nn.ReLU(), nn.Linear(WIDE // 2, WIDE))

    def forward(self, regions):
        return F.normalize((self.fc(regions) + self.mlp(regions)).mean(1), dim=1)


class Captions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WORD)
        self.gru = nn.GRU(WORD, WIDE, batch_first=True, bidirectional=True)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True)
        _, last = self.gru(packed)
        return F.normalize(last.mean(0), dim=1)


def fold():
    """Pictures, and five captions of each, the longest first in each batch."""
    regions = torch.randn(FOLD, REGIONS, FEATURES)
    words = torch.randint(1, VOCAB, (FOLD * EACH, LENGTH))
    lengths = torch.randint(LENGTH // 3, LENGTH + 1, (FOLD * EACH,))
    return regions.to(device), words.to(device), lengths


def encode(pictures, captions, regions, words, lengths):
    """Vectors of a fold, batch by batch, in the order of the captions."""
    seen = pictures(regions)
    read = torch.empty(len(words), WIDE, device=device)
    norms = []
    for start in range(0, len(words), BATCH):
        part = slice(start, start + BATCH)
        order = lengths[part].argsort(descending=True)
        at = order.to(device)
        read[part][at] = found = captions(words[part][at], lengths[part][order])
        norms.append(found.std() if "spread-at-end" in FIX else found.std().item())
    return seen, read, float(sum(norms) / len(norms))


def image_to_text(images, captions):
    ranks = np.zeros(len(images))
    for index in range(len(images)):
        scores = np.dot(images[index : index + 1], captions.T).flatten()
        order = np.argsort(scores)[::-1]
        rank = len(order)
        for i in range(EACH * index, EACH * index + EACH):
            rank = min(rank, np.where(order == i)[0][0])
        ranks[index] = rank
    return ranks


def text_to_image(images, captions):
    ranks = np.zeros(len(captions))
    for index in range(len(images)):
        scores = np.dot(captions[EACH * index : EACH * index + EACH], images.T)
        for i in range(EACH):
            order = np.argsort(scores[i])[::-1]
            ranks[EACH * index + i] = np.where(order == index)[0][0]
    return ranks


def ranks_on_device(seen, read):
    """How many are nearer than what is right."""
    scores = seen.double() @ read.double().T
    owner = torch.arange(len(read), device=device) // EACH
    own = scores[owner, torch.arange(len(read), device=device)]
    texts = (scores[:, None] > own.view(-1, EACH, 1)).sum(2).amin(1)
    return texts.cpu().numpy(), (scores > own).sum(0).cpu().numpy()


def recalls(ranks):
    return [100 * float(np.mean(ranks < k)) for k in (1, 5, 10)] + [float(np.median(ranks)) + 1]


@torch.inference_mode()
def main():
    folds = [fold() for _ in range(KEPT)]
    with device:
        pictures, captions = Pictures().eval(), Captions().eval()
    lead, began, results = min(STEPS // 2, 3), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        seen, read, spread = encode(pictures, captions, *folds[step % KEPT])
        if "ranks-on-device" in FIX:
            texts, images = ranks_on_device(seen, read)
        else:
            seen, read = seen.cpu().numpy().copy(), read.cpu().numpy().copy()
            texts, images = image_to_text(seen, read), text_to_image(seen, read)
        results.append((recalls(texts), recalls(images)))
        if step % 10 == 0:
            print(f"fold {step}: to text {results[-1][0]}, to picture {results[-1][1]}, spread {spread:.4f}")
    mean = np.mean(results, 0)
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"recall {mean[0, :3].sum() + mean[1, :3].sum():.3f}; {each:.3f} ms per fold")


main()
