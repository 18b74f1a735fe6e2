"""A picture in words: an LSTM looks at another part of the picture for each word (show, attend and tell)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, PIXELS, FEATURES, WORDS, VOCAB, WIDE = (
    (6, 2, 9, 16, 5, 30, 16) if TINY else (256, 128, 196, 2048, 24, 10_000, 512)
)
PAD = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_picture, self.of_state = nn.Linear(FEATURES, WIDE), nn.Linear(WIDE, WIDE)
        self.full = nn.Linear(WIDE, 1)

    def forward(self, picture, state, projected=None):
        """What is looked at, and how much of it is where."""
        if projected is None:
            projected = self.of_picture(picture)
        scores = self.full(F.relu(projected + self.of_state(state)[:, None]))[..., 0]
        weight = scores.softmax(1)
        return (picture * weight[..., None]).sum(1), weight


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.words = Attention(), nn.Embedding(VOCAB, WIDE)
        self.cell = nn.LSTMCell(WIDE + FEATURES, WIDE)
        self.start_h, self.start_c = nn.Linear(FEATURES, WIDE), nn.Linear(FEATURES, WIDE)
        self.gate, self.last = nn.Linear(WIDE, FEATURES), nn.Linear(WIDE, VOCAB)

    def forward(self, picture, captions):
        """Logits of each next word, and all that was looked at."""
        mean, words = picture.mean(1), self.words(captions)
        h, c = self.start_h(mean), self.start_c(mean)
        projected = self.attention.of_picture(picture) if "projected-once" in FIX else None
        logits, states, weights = [], [], []
        for t in range(captions.shape[1] - 1):
            seen, weight = self.attention(picture, h, projected)
            seen = self.gate(h).sigmoid() * seen
            h, c = self.cell(torch.cat([words[:, t], seen], 1), (h, c))
            if "logits-at-end" in FIX:
                states.append(h)
            else:
                logits.append(self.last(h))
            weights.append(weight)
        found = self.last(torch.stack(states, 1)) if states else torch.stack(logits, 1)
        return found, torch.stack(weights, 1)


def data():
    """Maps of features from a network that is not trained, and captions of many lengths."""
    picture = torch.randn(SIZE, PIXELS, FEATURES, device=device)
    first = torch.randint(1, VOCAB // 2, (SIZE, 1), device=device)
    picture[:, :, 0] += first / VOCAB
    captions = (first + 3 * torch.arange(WORDS + 1, device=device)) % (VOCAB - 1) + 1
    lengths = torch.randint(WORDS // 2, WORDS + 1, (SIZE, 1), device=device)
    return picture, torch.where(torch.arange(WORDS + 1, device=device) > lengths, PAD, captions)


class Meter:
    def __init__(self):
        self.last, self.total, self.count = 0.0, 0.0, 0

    def update(self, value, count):
        self.last, self.total, self.count = value, self.total + value * count, self.count + count

    @property
    def mean(self):
        return self.total / max(self.count, 1)


@torch.no_grad()
def accuracy(found, wanted, k):
    """Of how many words is the right one among the first k?"""
    hits = (found.topk(k, -1).indices == wanted[..., None]).any(-1) & (wanted != PAD)
    return hits.sum() / (wanted != PAD).sum()


def main():
    picture, captions = data()
    model = Decoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=device.type == "cuda")
    losses, top5 = Meter(), Meter()
    lead, began = min(STEPS // 2, 4), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        wanted = captions[chosen, 1:]
        found, weights = model(picture[chosen], captions[chosen])
        loss = F.cross_entropy(found.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        loss = loss + (1 - weights.sum(1)).square().mean()  # all of the picture is to be looked at
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 5.0)
        optimizer.step()
        if "meters-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            losses.update(loss.item(), BATCH)
            top5.update(accuracy(found, wanted, 5).item(), BATCH)
        if step % 20 == 0:
            print(f"step {step}: loss {losses.last:.4f} ({losses.mean:.4f}), top 5 {top5.last:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {losses.last:.5f}; {each:.3f} ms per step")


main()
