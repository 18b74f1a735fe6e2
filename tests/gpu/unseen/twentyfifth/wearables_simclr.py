"""What a wrist does, learned without labels: two views of a moment should be found among many others."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 300))
MOMENTS, BATCH, LONG, WIDE, LEAVE = (60, 8, 32, 8, 16) if TINY else (20000, 1024, 200, 64, 128)
SENSORS, TEMPERATURE = 6, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, enter = [], SENSORS
        for leave, kernel in ((WIDE, 24), (2 * WIDE, 16), (4 * WIDE, 8)):
            layers += [nn.Conv1d(enter, leave, kernel, 2, kernel // 2), nn.BatchNorm1d(leave), nn.ReLU()]
            enter = leave
        self.layers = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(enter, enter), nn.ReLU(), nn.Linear(enter, LEAVE))

    def forward(self, x):
        return self.head(self.layers(x))


class NTXent(nn.Module):
    """Each view is to find the other one of its moment among all views."""

    def __init__(self):
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(reduction="sum")
        self.mask = self.mask_correlated_samples(BATCH) if "mask-once" in FIX else None

    def mask_correlated_samples(self, batch):
        many = 2 * batch
        mask = torch.ones((many, many), dtype=torch.bool, device=device)
        mask = mask.fill_diagonal_(0)
        for i in range(batch):
            mask[i, batch + i] = 0
            mask[batch + i, i] = 0
        return mask

    def forward(self, z_i, z_j):
        batch = len(z_i)
        many = 2 * batch
        z = F.normalize(torch.cat([z_i, z_j]).float(), dim=1)
        mask = self.mask if self.mask is not None else self.mask_correlated_samples(batch)
        sim = z @ z.T / TEMPERATURE
        positive = torch.cat([torch.diag(sim, batch), torch.diag(sim, -batch)]).reshape(many, 1)
        negative = (
            sim[mask].reshape(many, -1) if "filled" not in FIX else sim.masked_fill(~mask, float("-inf"))
        )
        labels = torch.zeros(many, dtype=torch.long, device=z.device)
        return self.criterion(torch.cat([positive, negative], dim=1), labels) / many


def view(x):
    """Louder or softer, with some noise, now and then backward or without a sensor."""
    loud = 1 + 0.2 * torch.randn(len(x), SENSORS, 1, device=device)
    x = x * loud + 0.05 * torch.randn_like(x)
    x = torch.where(torch.rand(len(x), 1, 1, device=device) < 0.5, x.flip(2), x)
    return x * (torch.rand(len(x), SENSORS, 1, device=device) > 0.1)


def moments():
    """Each moment swings in its own way."""
    at = torch.arange(LONG, device=device) / 50
    fast, loud, when = torch.rand(3, MOMENTS, SENSORS, 1, device=device)
    return loud * torch.sin(6 * (1 + 5 * fast) * at + 6 * when) + 0.1 * torch.randn(
        MOMENTS, SENSORS, LONG, device=device
    )


def main():
    have = moments()
    model, criterion = Encoder().to(device), NTXent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        x = have[torch.randint(MOMENTS, (BATCH,), device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            z_i, z_j = model(torch.cat([view(x), view(x)])).chunk(2)
        loss = criterion(z_i, z_j)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
