"""Recommend films with a variational autoencoder (Mult-VAE): a user is a row of what was watched."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 240))
USERS, HELD, FILMS, BATCH, HIDDEN, LATENT = (
    (60, 12, 40, 8, 12, 6) if TINY else (40_000, 4000, 20_108, 500, 600, 200)
)
ANNEAL, CAP = 20_000, 0.2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Rows:
    """A matrix of users and films, sparse by rows."""

    def __init__(self, users, seed):
        rng = np.random.default_rng(seed)
        counts = rng.integers(5, min(200, FILMS // 3), users)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        drawn = rng.random(self.starts[-1]) ** 2.5
        taste = np.repeat(rng.integers(0, FILMS, users), counts)
        self.films = (drawn * FILMS + taste * (rng.random(len(drawn)) < 0.5)).astype(np.int64) % FILMS

    def toarray(self, rows):
        """Dense rows, ones and zeros."""
        dense = np.zeros((len(rows), FILMS), dtype=np.float32)
        for place, row in enumerate(rows):
            dense[place, self.films[self.starts[row] : self.starts[row + 1]]] = 1.0
        return dense

    def pairs(self, rows):
        """Places of the ones."""
        counts = self.starts[rows + 1] - self.starts[rows]
        films = np.concatenate([self.films[self.starts[row] : self.starts[row + 1]] for row in rows])
        return np.stack([np.repeat(np.arange(len(rows)), counts), films])


def naive_sparse2tensor(data, rows):
    if "sparse-copied" in FIX:
        places = torch.from_numpy(data.pairs(rows)).to(device)
        dense = torch.zeros(len(rows), FILMS, device=device)
        dense[places[0], places[1]] = 1.0
        return dense
    return torch.from_numpy(data.toarray(rows)).to(device)


class MultVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = nn.Linear(FILMS, HIDDEN), nn.Linear(HIDDEN, 2 * LATENT)
        self.p1, self.p2 = nn.Linear(LATENT, HIDDEN), nn.Linear(HIDDEN, FILMS)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        h = self.drop(F.normalize(x))
        mu, logvar = self.q2(torch.tanh(self.q1(h))).chunk(2, 1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.p2(torch.tanh(self.p1(z))), mu, logvar


def loss_function(logits, x, mu, logvar, anneal):
    likelihood = -(F.log_softmax(logits, 1) * x).sum(1).mean()
    distance = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return likelihood + anneal * distance


@torch.no_grad()
def ndcg(model, data, k=100):
    """Half of what a user has watched is given, the other half is to be found."""
    model.eval()
    found, k = [], min(k, FILMS)
    discount = 1 / torch.log2(torch.arange(2, k + 2, device=device).float())
    for rows in np.array_split(np.arange(HELD), max(HELD // BATCH, 1)):
        x = naive_sparse2tensor(data, rows)
        given = x * halves
        logits = model(given)[0].masked_fill(given > 0, -torch.inf)
        hits = (x * (1 - halves)).gather(1, logits.topk(k, 1).indices)
        most = (x * (1 - halves)).sum(1).clamp(1, k).long()
        found.append((hits * discount).sum(1) / discount.cumsum(0)[most - 1])
    return torch.cat(found).mean().item()


halves = (torch.arange(FILMS, device=device) % 2).float()
train, held = Rows(USERS, 0), Rows(HELD, 1)
model = MultVAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step, epoch, times, shown, rng = 0, 0, [], 0.0, np.random.default_rng(2)
while step < STEPS:
    order = rng.permutation(USERS)
    model.train()
    for begin in range(0, USERS - BATCH + 1, BATCH):
        if step == STEPS:
            break
        began = time.perf_counter()
        x = naive_sparse2tensor(train, order[begin : begin + BATCH])
        logits, mu, logvar = model(x)
        loss = loss_function(logits, x, mu, logvar, min(CAP, step / ANNEAL))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        times.append(time.perf_counter() - began)
        step += 1
    print(f"epoch {epoch}: loss {shown:.3f}, NDCG@100 {ndcg(model, held):.5f}")
    epoch += 1
kept = times[min(STEPS // 2, 10) :]
print(f"loss {shown:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
