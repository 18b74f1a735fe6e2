"""Active learning: train, test, ask passes with dropout where they disagree (BALD), label those pictures."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 10))  # cycles
WIDTH, POOL, TEST, CHUNK, PASSES = (8, 24, 8, 8, 3) if TINY else (64, 3072, 1024, 1024, 20)
START, QUERY, EPOCH_BATCHES, BATCH, CLASSES = (8, 4, 2, 4, 10) if TINY else (512, 50, 24, 128, 10)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)


class ConvNet(nn.Module):
    """Convolutions without, a head with dropout."""

    def __init__(self):
        super().__init__()
        layers, ch = [], 3
        for width in (WIDTH, 2 * WIDTH, 4 * WIDTH):
            for _ in range(2):
                layers += [
                    nn.Conv2d(ch, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                ch = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(ch * 16, 512),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(512, CLASSES),
        )

    def forward(self, x):
        return self.head(self.features(x))


class Dataset:
    """Pictures on the device, and which of them are labelled."""

    def __init__(self):
        self.labels = torch.randint(0, CLASSES, (POOL + TEST,), device=device)
        self.images = torch.randint(0, 156, (POOL + TEST, 3, 32, 32), dtype=torch.uint8, device=device)
        rows = torch.arange(POOL + TEST, device=device)
        self.images[rows, self.labels % 3, self.labels * 3] += 100  # a bright line
        self.labelled = torch.zeros(POOL, dtype=torch.bool, device=device)
        self.labelled[torch.randperm(POOL, device=device)[:START]] = True

    def batch(self, rows):
        return self.images[rows].float() / 127.5 - 1, self.labels[rows]


class Strategy:
    def __init__(self, dataset):
        self.dataset, self.net = dataset, ConvNet().to(device)

    def train(self):
        fused = True if "fused" in FIX else None
        optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=fused)
        known = self.dataset.labelled.nonzero().squeeze(1)
        self.net.train()
        for _ in range(EPOCH_BATCHES):
            x, y = self.dataset.batch(known[torch.randint(0, len(known), (BATCH,), device=device)])
            optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    @torch.no_grad()
    def accuracy(self):
        self.net.eval()
        right = 0
        for rows in torch.arange(POOL, POOL + TEST, device=device).split(CHUNK):
            x, y = self.dataset.batch(rows)
            right += (self.net(x).argmax(1) == y).sum().item()
        return right / TEST

    @torch.no_grad()
    def predict_prob_dropout_split(self, rows, n_drop):
        """Probabilities of each pass with other neurons switched off: passes, pictures, classes."""
        self.net.eval()
        self.net.head.train()
        probs = torch.zeros(n_drop, len(rows), CLASSES)
        if "features-once" in FIX:
            for chunk in torch.arange(len(rows)).split(CHUNK):
                h = self.net.features(self.dataset.batch(rows[chunk])[0])
                h = self.net.head(h.repeat(n_drop, 1, 1, 1)).unflatten(0, (n_drop, -1))
                probs[:, chunk] = F.softmax(h, dim=-1).cpu()
            return probs
        for i in range(n_drop):
            for chunk in torch.arange(len(rows)).split(CHUNK):
                x, _ = self.dataset.batch(rows[chunk])
                probs[i, chunk] = F.softmax(self.net(x), dim=-1).cpu()
        return probs

    def query(self, n):
        """The n pictures whose predictions differ most between passes."""
        unlabelled = (~self.dataset.labelled).nonzero().squeeze(1)
        probs = self.predict_prob_dropout_split(unlabelled, PASSES)
        pb = probs.mean(0)
        entropy = -(pb * torch.log(pb + 1e-10)).sum(1)
        expected = -(probs * torch.log(probs + 1e-10)).sum(2).mean(0)
        return unlabelled[(entropy - expected).topk(n).indices.to(device)]


dataset = Dataset()
strategy, times = Strategy(dataset), []
for cycle in range(STEPS):
    start = time.time()
    loss = strategy.train()
    accuracy = strategy.accuracy()
    query_idxs = strategy.query(QUERY)
    dataset.labelled[query_idxs] = True
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    times.append(time.time() - start)
    print(f"Round {cycle}: loss {loss:.4f}, accuracy {accuracy:.4f}, {int(dataset.labelled.sum())} labels")
kept = times[1:] or times
print(f"{sum(kept) / len(kept):.5f} s per round")
