"""What does a turbine look like when it is well? An autoencoder of windows of its sensors."""

import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))
MOMENTS, WINDOW, SENSORS, BATCH, WIDE = (120, 16, 4, 16, 8) if TINY else (65_600, 64, 32, 512, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True


@dataclass
class Arguments:
    steps: int
    batch: int
    rate: float = 1e-3
    log_every: int = 20 if "loss-rarely" in FIX else 1


class Windows(Dataset):
    """Each window of a long table, brought to mean 0 and spread 1."""

    def __init__(self, table):
        self.table, self.mean, self.std = table, table.mean(0), table.std(0)

    def __len__(self):
        return len(self.table) - WINDOW

    def __getitem__(self, index):
        window = (self.table[index : index + WINDOW] - self.mean) / self.std
        return torch.tensor(window.T, dtype=torch.float32)


class Shuffled(Sampler):
    def __init__(self, count):
        self.count, self.generator = count, torch.Generator().manual_seed(0)

    def __len__(self):
        return self.count

    def __iter__(self):
        yield from torch.randperm(self.count, generator=self.generator).tolist()


class WindowsOnDevice:
    """The same batches, cut out of the table on the device."""

    def __init__(self, dataset, sampler, batch):
        table = torch.tensor((dataset.table - dataset.mean) / dataset.std, dtype=torch.float32)
        self.windows = table.to(device).unfold(0, WINDOW, 1)
        self.sampler, self.batch = sampler, batch

    def __iter__(self):
        order = torch.tensor(list(self.sampler)).to(device)
        for chosen in order.split(self.batch):
            if len(chosen) == self.batch:
                yield self.windows[chosen]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        down, up, wide = [], [], SENSORS
        for i in range(3):
            down += [nn.Conv1d(wide, WIDE << i, 5, 2, 2), nn.BatchNorm1d(WIDE << i), nn.GELU()]
            wide = WIDE << i
        for i in range(1, -1, -1):
            up += [nn.ConvTranspose1d(wide, WIDE << i, 4, 2, 1), nn.BatchNorm1d(WIDE << i), nn.GELU()]
            wide = WIDE << i
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)
        self.last = nn.ConvTranspose1d(wide, SENSORS, 4, 2, 1)
        flat = 4 * WIDE * WINDOW // 8
        self.code, self.back = nn.Linear(flat, 32), nn.Linear(32, flat)

    def forward(self, x):
        y = self.down(x)
        return self.last(self.up(self.back(self.code(y.flatten(1))).view_as(y)))


class Trainer:
    def __init__(self, model, arguments, dataset):
        self.model, self.arguments = model.to(device), arguments
        sampler = Shuffled(len(dataset))
        if "windows-on-device" in FIX:
            self.loader = WindowsOnDevice(dataset, sampler, arguments.batch)
        else:
            self.loader = DataLoader(
                dataset, arguments.batch, sampler=sampler, drop_last=True, pin_memory=device.type == "cuda"
            )
        self.optimizer = torch.optim.Adam(model.parameters(), arguments.rate, fused=device.type == "cuda")
        self.shown = 0.0

    def batches(self):
        while True:
            for windows in self.loader:
                yield windows.to(device, non_blocking=True)

    def fit(self):
        self.model.train()
        lead, began, batches = min(self.arguments.steps // 2, 8), 0.0, self.batches()
        for step in range(self.arguments.steps):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            windows = next(batches)
            loss = F.mse_loss(self.model(windows), windows)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.arguments.log_every == 0 or step == self.arguments.steps - 1:
                self.shown = loss.item()
            if step % 40 == 0:
                print(f"step {step}: loss {self.shown:.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (self.arguments.steps - lead)
        print(f"loss {self.shown:.5f}; {each:.3f} ms per step")


def measured():
    """Waves that belong to each other, with noise."""
    rng, moments = np.random.default_rng(0), np.arange(MOMENTS)[:, None]
    rates, phases = rng.uniform(0.01, 0.3, (1, 6)), rng.uniform(0, 6, (1, 6))
    waves = np.sin(moments * rates + phases)
    return waves @ rng.normal(size=(6, SENSORS)) + 0.1 * rng.normal(size=(MOMENTS, SENSORS)) + 3


Trainer(Autoencoder(), Arguments(STEPS, BATCH), Windows(measured())).fit()
