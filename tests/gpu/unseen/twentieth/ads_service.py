"""Which ads to show? Requests wait in a queue, a worker scores all candidates and answers with the best."""

import os
import queue
import threading
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 800))  # requests that are answered
CLIENTS, OF_USER, OF_AD, ROWS, USERS, ADS, CANDIDATES, WIDE, HIDDEN, TOP = (
    (2, 3, 4, 20, 10, 30, 12, 4, 16, 3) if TINY else (4, 18, 30, 20_000, 1000, 5000, 500, 16, 512, 10)
)
USER_FIELDS, AD_FIELDS = [f"user_{i}" for i in range(OF_USER)], [f"ad_{i}" for i in range(OF_AD)]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = True


class DeepFM(nn.Module):
    """A table for each field; products of all pairs of fields, and a network over all of them."""

    def __init__(self):
        super().__init__()
        fields = OF_USER + OF_AD
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDE) for _ in range(fields))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        self.mlp = nn.Sequential(
            nn.Linear(fields * WIDE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU(),
            nn.Linear(HIDDEN // 2, 1),
        )  # fmt: skip
        self.together = None

    def lookup(self, columns):
        if "one-table" not in FIX:
            return torch.stack([table(x) for table, x in zip(self.tables, columns, strict=True)], 1)
        if self.together is None:
            self.together = torch.cat([table.weight for table in self.tables])
            self.starts = ROWS * torch.arange(len(self.tables), device=device)
        return self.together[torch.stack(columns, 1) + self.starts]

    def forward(self, columns):
        x = self.lookup(columns)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1)
        return torch.sigmoid(pairs + self.mlp(x.flatten(1))[:, 0])


class Scorer:
    """The model with what it knows of users and ads: a dictionary of each."""

    def __init__(self):
        with device:
            self.model = DeepFM().eval()
        rng = np.random.default_rng(0)
        self.user_rows = rng.integers(0, ROWS, (USERS, OF_USER))
        self.ad_rows = rng.integers(0, ROWS, (ADS, OF_AD))
        self.users = [dict(zip(USER_FIELDS, row, strict=True)) for row in self.user_rows.tolist()]
        self.ads = [dict(zip(AD_FIELDS, row, strict=True)) for row in self.ad_rows.tolist()]

    def columns(self, user, candidates):
        """A tensor for each field, on the device."""
        if "one-array" in FIX:
            rows = np.empty((len(candidates), OF_USER + OF_AD), np.int64)
            rows[:, :OF_USER] = self.user_rows[user]
            rows[:, OF_USER:] = self.ad_rows[candidates]
            return torch.from_numpy(rows).to(device).t().contiguous().unbind(0)
        about, ads = self.users[user], [self.ads[i] for i in candidates]
        inputs = {}
        for name in USER_FIELDS:
            inputs[name] = torch.tensor([about[name]] * len(ads), dtype=torch.long).to(device)
        for name in AD_FIELDS:
            inputs[name] = torch.tensor([ad[name] for ad in ads], dtype=torch.long).to(device)
        return [inputs[name] for name in USER_FIELDS + AD_FIELDS]

    @torch.inference_mode()
    def __call__(self, user, candidates):
        likely, places = self.model(self.columns(user, candidates)).topk(TOP)
        return [(candidates[i], p) for i, p in zip(places.tolist(), likely.tolist(), strict=True)]


def work():
    """The worker: whatever waits longest."""
    while (job := waiting.get()) is not None:
        user, candidates, answer = job
        answer.put(score(user, candidates))


def visit(number):
    """A page that is looked at by one user after the other, and waits for its ads."""
    rng, answer = np.random.default_rng(number + 1), queue.Queue()
    pages = [(int(rng.integers(USERS)), rng.choice(ADS, CANDIDATES).tolist()) for _ in range(8)]
    for turn in range(STEPS // CLIENTS + (number < STEPS % CLIENTS)):
        asked = time.perf_counter()
        waiting.put((*pages[turn % 8], answer))
        best = answer.get()
        answers.append((time.perf_counter() - asked, time.perf_counter(), best[0][1]))


score = Scorer()
for user in range(5):
    score(user, list(range(CANDIDATES)))
waiting, answers = queue.Queue(), []
began = time.perf_counter()
worker = threading.Thread(target=work)
worker.start()
clients = [threading.Thread(target=visit, args=(i,)) for i in range(CLIENTS)]
for one in clients:
    one.start()
for one in clients:
    one.join()
waiting.put(None)
worker.join()
spent = max(ended for _, ended, _ in answers) - began
waits = sorted(wait for wait, _, _ in answers)
best = sum(p for _, _, p in answers) / len(answers)
median = 1e3 * waits[len(waits) // 2]
print(f"{len(answers)} requests, best {best:.4f} on average, median latency {median:.2f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per request")
