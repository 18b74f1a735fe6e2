"""How many stars has a review? It is read letter by letter, as a table of zeros and ones."""

import os
import string
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
TEXTS, BATCH, LONG, WIDE, FULL = (64, 4, 160, 8, 16) if TINY else (12800, 128, 1014, 256, 1024)
ALPHABET = string.ascii_lowercase + string.digits + "-,;.!?:'\"/\\|_@#$%^&*~`+=<>()[]{}\n"
STARS = 5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Reviews(Dataset):
    def __init__(self, texts, stars):
        self.texts, self.stars = texts, stars
        self.identity = np.identity(len(ALPHABET), dtype=np.float32)
        self.codes = np.zeros(256, np.uint8)  # 0 is what the alphabet does not have
        self.codes[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(1, len(ALPHABET) + 1)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = self.texts[index].lower()
        if "codes" in FIX:
            codes = self.codes[np.frombuffer(text.encode(), np.uint8)]
            codes = codes[codes > 0][:LONG]
            return np.pad(codes, (0, LONG - len(codes))), self.stars[index]
        letters = [self.identity[ALPHABET.index(letter)] for letter in text if letter in ALPHABET]
        data = np.array(letters[:LONG], dtype=np.float32)
        if len(data) < LONG:
            data = np.concatenate([data, np.zeros((LONG - len(data), len(ALPHABET)), np.float32)])
        return data, self.stars[index]


class CharCNN(nn.Module):
    def __init__(self):
        super().__init__()
        layers, enter, long = [], len(ALPHABET), LONG
        for size, pool in ((7, 3), (7, 3), (3, 1), (3, 1), (3, 1), (3, 3)):
            layers += [nn.Conv1d(enter, WIDE, size), nn.ReLU()] + ([nn.MaxPool1d(3)] if pool > 1 else [])
            enter, long = WIDE, (long - size + 1) // pool
        self.convolutions = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(long * WIDE, FULL), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(FULL, FULL), nn.ReLU(), nn.Dropout(0.5), nn.Linear(FULL, STARS),
        )  # fmt: skip

    def forward(self, x):
        return self.classifier(self.convolutions(x.transpose(1, 2)).flatten(1))


def written():
    """Reviews in which good and bad words say how many stars there are."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(string.ascii_letters), rng.integers(2, 10))) for _ in range(2000)]
    good, bad = words[:200], words[200:400]
    texts, stars = [], rng.integers(STARS, size=TEXTS)
    for star in stars:
        chosen = [words[i] for i in rng.integers(400, 2000, rng.integers(LONG // 12, LONG // 5))]
        for i in range(0, len(chosen), 5):
            chosen[i] = (good if rng.random() < star / (STARS - 1) else bad)[rng.integers(200)]
        texts.append(" ".join(chosen) + ("!" if star > 2 else "."))
    return texts, stars


def batches(loader):
    while True:
        yield from loader


def main():
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(Reviews(*written()), BATCH, shuffle=True, drop_last=True, generator=order)
    model = CharCNN().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    feed = batches(loader)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        letters, stars = next(feed)
        letters, stars = letters.to(device), stars.to(device)
        if "codes" in FIX:
            letters = F.one_hot(letters.long(), len(ALPHABET) + 1)[..., 1:].float()
        loss = F.cross_entropy(model(letters), stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
