"""Evaluate a reader of text lines (CRNN with CTC): character and word error rates over a test set."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.text import CharErrorRate, WordErrorRate

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 16))  # batches
LINES, BATCH, LETTERS, CELL, HEIGHT, WIDTH, HIDDEN = (
    (16, 4, 12, 16, 32, 8, 16) if TINY else (768, 64, 100, 16, 32, 48, 256)
)
ALPHABET = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,-?!0123456789"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Lines(Dataset):
    """Printed lines: each letter is a pattern in its cell, with specks; the rest of a line is white."""

    def __init__(self):
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 2, (len(ALPHABET), HEIGHT // 4, CELL // 4), dtype=np.uint8) * 180
        patterns = np.repeat(np.repeat(patterns, 4, 1), 4, 2)
        patterns[0] = 0
        self.texts, self.images, self.letters = [], [], np.zeros((LINES, LETTERS), np.int64)
        for line in range(LINES):
            words, length = [], rng.integers(LETTERS * 4 // 5, LETTERS + 1)
            while sum(len(word) + 1 for word in words) < length:
                letters = rng.integers(1, len(ALPHABET), rng.integers(2, 10))
                words.append("".join(ALPHABET[i] for i in letters))
            text = " ".join(words)[:length].strip()
            found = np.array([ALPHABET.index(letter) for letter in text])
            self.letters[line, : len(found)] = found
            image = patterns[self.letters[line]].transpose(1, 0, 2).reshape(HEIGHT, LETTERS * CELL)
            specks = rng.integers(0, 60, image.shape, dtype=np.uint8)
            self.texts.append(text)
            self.images.append(image + specks)

    def __len__(self):
        return LINES

    def __getitem__(self, idx):
        return torch.from_numpy(self.images[idx]), self.texts[idx]


class CRNN(nn.Module):
    """A frame for each four columns, a letter or nothing (0) for each frame."""

    def __init__(self):
        super().__init__()
        w, layers, inputs = WIDTH, [], 1
        for outputs, pool in ((w, (2, 2)), (2 * w, (2, 2)), (4 * w, (2, 1)), (4 * w, (4, 1))):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers.append(nn.MaxPool2d(pool))
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.lstm = nn.LSTM(4 * w, HIDDEN, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * HIDDEN + 4 * w, len(ALPHABET) + 1)

    def frames(self, images):
        x = self.features(images[:, None].float() / 255).squeeze(2).transpose(1, 2)
        return torch.cat([self.lstm(x)[0], x], 2)

    def forward(self, images):
        return F.log_softmax(self.head(self.frames(images)), 2)


@torch.no_grad()
def fit_head(model, dataset, count):
    """Stands in for training: the last layer by least squares, the layers before as they are."""
    images = torch.stack([dataset[i][0] for i in range(count)]).to(device)
    wanted = torch.zeros(count, LETTERS, 4, dtype=torch.long)
    wanted[:, :, 1:3] = torch.from_numpy(dataset.letters[:count])[:, :, None] + 1
    x = torch.cat([model.frames(part) for part in images.split(BATCH)]).flatten(0, 1).double()
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    y = F.one_hot(wanted.flatten().to(device), len(ALPHABET) + 1).double()
    ridge = 1e-7 * len(x) * torch.eye(x.size(1), dtype=x.dtype, device=device)
    solved = torch.linalg.solve(x.T @ x + ridge, x.T @ y).float()
    model.head.weight.copy_(8 * solved[:-1].T)
    model.head.bias.copy_(8 * solved[-1])


def decode(best):
    """What a greedy reading of frames says: repetitions and nothings left out."""
    texts = []
    for row in best.tolist():
        letters, before = [], 0
        for index in row:
            if index not in (before, 0):
                letters.append(ALPHABET[index - 1])
            before = index
        texts.append("".join(letters).strip())
    return texts


def distances(found, wanted):
    """Levenshtein distances of all pairs at once: a row of every table in turn."""
    across = max(map(len, wanted))
    theirs = np.full((len(wanted), across), -1)
    for i, text in enumerate(wanted):
        theirs[i, : len(text)] = [ord(letter) for letter in text]
    own = np.full((len(found), max(map(len, found))), -2)
    for i, text in enumerate(found):
        own[i, : len(text)] = [ord(letter) for letter in text]
    places = np.arange(across + 1)
    row, rows = np.tile(places, (len(wanted), 1)), []
    rows.append(row)
    for j in range(own.shape[1]):
        new = np.empty_like(row)
        new[:, 0] = j + 1
        new[:, 1:] = np.minimum(row[:, 1:] + 1, row[:, :-1] + (theirs != own[:, j : j + 1]))
        row = np.minimum.accumulate(new - places, 1) + places
        rows.append(row)
    return [int(rows[len(a)][i, len(b)]) for i, (a, b) in enumerate(zip(found, wanted, strict=True))]


class Rates:
    """Character and word error rates so far."""

    def __init__(self):
        self.characters, self.words, self.errors, self.total = CharErrorRate(), WordErrorRate(), 0, 0

    def update(self, found, wanted):
        self.words.update(found, wanted)
        if "distances-together" in FIX:
            self.errors += sum(distances(found, wanted))
            self.total += sum(map(len, wanted))
        else:
            self.characters.update(found, wanted)

    def compute(self):
        together = "distances-together" in FIX
        cer = self.errors / self.total if together else float(self.characters.compute())
        return cer, float(self.words.compute())


@torch.no_grad()
def evaluate(model, loader):
    rates, times, step = Rates(), [], 0
    while step < STEPS:
        began = time.perf_counter()
        for images, texts in loader:
            if step == STEPS:
                break
            if "pinned" in FIX and device.type == "cuda":
                images = images.pin_memory()
            best = model(images.to(device, non_blocking=True)).argmax(2).cpu()
            rates.update(decode(best), list(texts))
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            step += 1
    return rates.compute(), times


lines = Lines()
model = CRNN().to(device).eval()
fit_head(model, lines, min(LINES, 4 * BATCH))
(cer, wer), times = evaluate(model, DataLoader(lines, BATCH))
kept = times[min(STEPS // 2, 3) :]
print(f"CER {cer:.5f}, WER {wer:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
