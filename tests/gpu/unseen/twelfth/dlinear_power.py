"""How much power will be used? A linear model for 321 households, from windows of fourteen days."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 150))
HOURS, HOUSES, SEEN, OVERLAP, AHEAD, BATCH, KERNEL = (
    (120, 5, 24, 6, 12, 4, 5) if TINY else (8000, 321, 336, 48, 96, 32, 25)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def load():
    """Stands in for a table: use by the hour, scaled, and features of the hour."""
    rng = np.random.default_rng(0)
    t = np.arange(HOURS)[:, None]
    use = np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6, HOUSES)) + 0.3 * np.sin(2 * np.pi * t / 168)
    use = use + 0.1 * rng.normal(size=(HOURS, HOUSES))
    marks = np.stack([t[:, 0] % 24 / 23 - 0.5, t[:, 0] // 24 % 7 / 6 - 0.5, t[:, 0] // 24 % 31 / 30 - 0.5], 1)
    return (use - use.mean(0)) / use.std(0), marks


class Windows(Dataset):
    def __init__(self):
        self.use, self.marks = load()
        if "float32-table" in FIX:
            self.use, self.marks = self.use.astype(np.float32), self.marks.astype(np.float32)

    def __len__(self):
        return HOURS - SEEN - AHEAD + 1

    def __getitem__(self, index):
        end = index + SEEN
        start = end - OVERLAP
        seen, wanted = self.use[index:end], self.use[start : end + AHEAD]
        return seen, wanted, self.marks[index:end], self.marks[start : end + AHEAD]


class OnDevice:
    """The same batches, cut out of a table that lies on the device."""

    def __init__(self, windows, batches):
        self.batches = batches
        self.use, self.marks = (
            torch.from_numpy(one).float().to(device) for one in (windows.use, windows.marks)
        )
        self.seen = torch.arange(SEEN, device=device)
        self.wanted = torch.arange(SEEN - OVERLAP, SEEN + AHEAD, device=device)

    def __iter__(self):
        for batch in self.batches:
            index = torch.tensor(batch).to(device, non_blocking=True)[:, None]
            seen, wanted = index + self.seen, index + self.wanted
            yield self.use[seen], self.use[wanted], self.marks[seen], self.marks[wanted]


class DLinear(nn.Module):
    """What moves slowly and what is left, each with a layer over time."""

    def __init__(self):
        super().__init__()
        self.slow, self.rest = nn.Linear(SEEN, AHEAD), nn.Linear(SEEN, AHEAD)
        for layer in (self.slow, self.rest):
            nn.init.constant_(layer.weight, 1 / SEEN)

    def forward(self, x):
        x = x.transpose(1, 2)
        padded = F.pad(x, ((KERNEL - 1) // 2, (KERNEL - 1) // 2), mode="replicate")
        slow = F.avg_pool1d(padded, KERNEL, 1)
        return (self.slow(slow) + self.rest(x - slow)).transpose(1, 2)


class Experiment:
    def __init__(self):
        self.windows = Windows()
        sampler = RandomSampler(self.windows, generator=torch.Generator().manual_seed(0))
        batches = BatchSampler(sampler, BATCH, drop_last=True)
        if "table-on-device" in FIX:
            self.loader = OnDevice(self.windows, batches)
        else:
            self.loader = DataLoader(self.windows, batch_sampler=batches, num_workers=0)
        self.model = DLinear().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.losses = []

    def train_batch(self, batch):
        seen, wanted, seen_marks, wanted_marks = (one.float().to(device) for one in batch)
        # Other models of this experiment take marks and a beginning of what is wanted, too.
        known = torch.cat([wanted[:, :OVERLAP], torch.zeros_like(wanted[:, OVERLAP:])], 1)
        assert len(known) == len(seen_marks) == len(wanted_marks)
        found = self.model(seen)
        loss = F.mse_loss(found[:, -AHEAD:], wanted[:, -AHEAD:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach() if "losses-at-end" in FIX else loss.item())

    def train(self):
        lead, began, step = min(STEPS // 2, 10), 0.0, 0
        while step < STEPS:
            for batch in self.loader:
                if step == lead:
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    began = time.perf_counter()
                self.train_batch(batch)
                step += 1
                if step == STEPS:
                    break
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (STEPS - lead)


def main():
    experiment = Experiment()
    each = experiment.train()
    first, last = float(experiment.losses[0]), float(experiment.losses[-1])
    print(f"loss {first:.5f} to {last:.5f}; {each:.3f} ms per step")


main()
