"""Scratches on steel: a network first learns to repair pictures of it, then to find what is scratched."""

import os
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 20))  # epochs, half of them in each phase
TRAIN, VALID, BATCH, SIZE, CHANNELS, LEVELS = (8, 6, 4, 16, 8, 2) if TINY else (256, 64, 32, 256, 32, 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Double(nn.Sequential):
    def __init__(self, enter, leave):
        super().__init__(
            nn.Conv2d(enter, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
            nn.Conv2d(leave, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [CHANNELS * 2**i for i in range(LEVELS + 1)]
        self.enter = Double(1, CHANNELS)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(Double(narrow, wide) for narrow, wide in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in pairs)
        self.join = nn.ModuleList(Double(wide, narrow) for narrow, wide in pairs)
        self.head = nn.Conv2d(CHANNELS, 1, 1)

    def forward(self, x):
        x = self.enter(x)
        kept = []
        for block in self.down:
            kept.append(x)
            x = block(F.max_pool2d(x, 2))
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def repair_loss(found, scratched, clean, masks):
    return F.mse_loss(found, clean)


def find_loss(found, scratched, clean, masks):
    chances = found.sigmoid()
    both, either = (chances * masks).sum((1, 2, 3)), (chances + masks).sum((1, 2, 3))
    return F.binary_cross_entropy_with_logits(found, masks) + 1 - (2 * both / (either + 1)).mean()


class Job:
    def __init__(self):
        self.train, self.valid = steel(TRAIN), steel(VALID)
        with device:
            self.model = UNet().to(memory_format=torch.channels_last)
        self.spent, self.counted, self.shown, self.best, self.least = 0.0, 0, 0.0, {}, float("inf")

    def loss(self, of, batch):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = self.model(batch[0].contiguous(memory_format=torch.channels_last))
        return of(found.float(), *batch)

    def epoch(self, of, optimizer, read):
        self.model.train()
        for part in torch.randperm(TRAIN, device=device).split(BATCH):
            loss = self.loss(of, [one[part] for one in self.train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if read:
                self.shown = loss.item()

    @torch.no_grad()
    def validate(self, of):
        """The mean loss of pictures that were not learned from."""
        self.model.eval()
        together, losses = BATCH if "validated-together" in FIX else 1, []
        for batch in zip(*(one.split(together) for one in self.valid), strict=True):
            losses.append(self.loss(of, batch).item() * len(batch[0]))
        return sum(losses) / VALID

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def phase(self, name, of, epochs, rate):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, fused=low)
        lead, began, self.least = min(epochs // 2, 2), 0.0, float("inf")
        for epoch in range(epochs):
            if epoch == lead:
                began = self.now()
            self.epoch(of, optimizer, "loss-rarely" not in FIX or epoch % 5 == 0 or epoch == epochs - 1)
            valid = self.validate(of)
            if valid < self.least:
                self.least = valid
                self.best = {key: one.clone() for key, one in self.model.state_dict().items()}
            if epoch % 5 == 0:
                print(f"{name}, epoch {epoch}: loss {self.shown:.4f}, of others {valid:.4f}")
        self.spent, self.counted = self.spent + self.now() - began, self.counted + epochs - lead


def steel(count):
    """Pictures that are scratched along a line, clean ones, and where the scratches are."""
    y, x = torch.meshgrid(*2 * [torch.linspace(-1, 1, SIZE, device=device)], indexing="ij")
    turned, far, rolled = torch.rand(3, count, 1, 1, 1, device=device)
    grain = 0.05 * torch.randn(count, 1, SIZE, SIZE, device=device)
    clean = 0.5 + 0.2 * torch.sin(30 * x + 6 * rolled) + grain
    masks = ((torch.cos(6 * turned) * x + torch.sin(6 * turned) * y - far).abs() < 0.05).float()
    return clean * (1 - 0.6 * masks), clean, masks


def main():
    job = Job()
    job.phase("repair", repair_loss, STEPS // 2, 1e-3)
    job.model.load_state_dict(job.best)
    job.phase("find", find_loss, STEPS - STEPS // 2, 3e-4)
    each = 1e3 * job.spent / job.counted
    print(f"loss {job.shown:.5f}, of others {job.least:.5f}; {each:.3f} ms per epoch of both phases")


main()
