"""Loans: an encoder of tables first learns without labels what was changed in a row, then who pays back."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 400))  # half of them in each phase
ROWS, TEST, COLUMNS, BATCH, WIDE = (100, 40, 12, 16, 16) if TINY else (200_000, 20_000, 96, 2048, 256)
CHANGED, ALPHA = 0.3, 2.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(COLUMNS, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(),
            nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(),
            nn.Linear(WIDE, WIDE), nn.ReLU(),
        )  # fmt: skip


class Batches:
    """Batches of rows and labels, epoch after epoch."""

    def __init__(self, rows, labels):
        self.data = TensorDataset(rows, labels)
        self.order = torch.Generator()
        self.sampler = RandomSampler(self.data, generator=self.order)
        self.loader = DataLoader(self.data, BATCH, sampler=self.sampler, drop_last=True)
        self.here = [one.to(device) for one in self.data.tensors] if "rows-together" in FIX else None

    def __iter__(self):
        self.order.manual_seed(0)
        while True:
            if self.here is None:
                for rows, labels in self.loader:
                    yield rows.to(device), labels.to(device)
            else:
                order = torch.tensor(list(self.sampler), device=device)
                for part in order[: ROWS // BATCH * BATCH].split(BATCH):
                    yield [one[part] for one in self.here]


class Job:
    def __init__(self):
        rows, labels = loans(ROWS + TEST)
        self.test = rows[ROWS:].to(device), labels[ROWS:].to(device)
        self.batches = Batches(rows[:ROWS], labels[:ROWS])
        with device:
            self.encoder, self.head = Encoder(), nn.Linear(WIDE, 1)
            self.which, self.what = nn.Linear(WIDE, COLUMNS), nn.Linear(WIDE, COLUMNS)
        self.chance = torch.Generator(device).manual_seed(1)
        self.spent, self.counted, self.shown = 0.0, 0, 0.0

    def pretext(self, rows, labels):
        """Some numbers are taken from other rows: which, and what was there?"""
        others = torch.rand(rows.shape, generator=self.chance, device=device).argsort(0)
        mask = (torch.rand(rows.shape, generator=self.chance, device=device) < CHANGED).float()
        encoded = self.encoder(rows * (1 - mask) + rows.gather(0, others) * mask)
        found = F.binary_cross_entropy_with_logits(self.which(encoded), mask)
        return found + ALPHA * F.mse_loss(self.what(encoded), rows)

    def paid(self, rows, labels):
        return F.binary_cross_entropy_with_logits(self.head(self.encoder(rows)).squeeze(1), labels)

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def phase(self, name, of, modules, steps, rate):
        weights = [one for module in modules for one in module.parameters()]
        optimizer = torch.optim.Adam(weights, lr=rate)
        lead, began, feed = min(steps // 2, 10), 0.0, iter(self.batches)
        for step in range(steps):
            if step == lead:
                began = self.now()
            loss = of(*next(feed))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == steps - 1:
                self.shown = loss.item()
            if step % 100 == 0:
                print(f"{name}, step {step}: loss {self.shown:.4f}")
        self.spent, self.counted = self.spent + self.now() - began, self.counted + steps - lead

    @torch.no_grad()
    def evaluate(self):
        """The area under the curve, by ranks."""
        self.encoder.eval()
        scores = self.head(self.encoder(self.test[0])).squeeze(1)
        good = self.test[1][scores.argsort()].double()
        ranks = torch.arange(1, TEST + 1, device=device, dtype=torch.float64)
        count = good.sum()
        return (((ranks * good).sum() - count * (count + 1) / 2) / (count * (TEST - count))).item()


def loans(count):
    """Tables with columns that hang together, and who paid back."""
    factors = torch.randn(count, 8)
    rows = factors @ torch.randn(8, COLUMNS) + torch.randn(count, COLUMNS)
    labels = factors[:, 0] + factors[:, 1] * factors[:, 2] + 0.5 * torch.randn(count) > 0.3
    return rows / 3, labels.float()


def main():
    job = Job()
    job.phase("pretext", job.pretext, [job.encoder, job.which, job.what], STEPS // 2, 1e-3)
    pretext = job.shown
    job.phase("paid back", job.paid, [job.encoder, job.head], STEPS - STEPS // 2, 5e-4)
    each = 1e3 * job.spent / job.counted
    print(f"AUC {job.evaluate():.5f}, losses {pretext:.6f}, {job.shown:.6f}; {each:.3f} ms per step")


main()
