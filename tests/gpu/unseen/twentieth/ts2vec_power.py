"""Vectors of how much power is used at each moment, learned from two crops of the same days that overlap."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SERIES, LONG, BATCH, SHARED, EXTRA, FEATURES, HIDDEN, VECTOR, DEPTH = (
    (8, 60, 3, 16, 4, 2, 8, 12, 2) if TINY else (512, 4096, 64, 1024, 128, 7, 64, 320, 10)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True


class ConvBlock(nn.Module):
    def __init__(self, enter, leave, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(enter, leave, 3, padding=dilation, dilation=dilation)
        self.conv2 = nn.Conv1d(leave, leave, 3, padding=dilation, dilation=dilation)
        self.skip = nn.Conv1d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.conv2(F.gelu(self.conv1(F.gelu(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(FEATURES, HIDDEN)
        self.blocks = nn.Sequential(
            *(ConvBlock(HIDDEN, HIDDEN, 2**i) for i in range(DEPTH)), ConvBlock(HIDDEN, VECTOR, 2**DEPTH)
        )

    def forward(self, x):
        x = self.enter(x)
        x = x * (torch.rand(x.shape[:2], device=x.device) > 0.5)[..., None]  # half of all moments is hidden
        return self.blocks(x.transpose(1, 2)).transpose(1, 2)


def contrast(z):
    """Each row of the second half belongs to one of the first; all others are not like it."""
    half = z.shape[1] // 2
    similar = z @ z.transpose(1, 2)
    if "without-itself" in FIX:
        right = similar.diagonal(half, 1, 2)
        similar = similar.masked_fill(torch.eye(2 * half, device=z.device, dtype=torch.bool), float("-inf"))
        return similar.logsumexp(2).mean() - right.mean()
    logits = torch.tril(similar, -1)[:, :, :-1]
    logits = logits + torch.triu(similar, 1)[:, :, 1:]
    logits = -F.log_softmax(logits, 2)
    i = torch.arange(half, device=z.device)
    return (logits[:, i, half + i - 1].mean() + logits[:, half + i, i].mean()) / 2


def hierarchical(z1, z2):
    """Between series, and between moments of a series, over coarser and coarser moments."""
    loss, levels = torch.zeros((), device=z1.device), 0
    while z1.shape[1] > 1:
        among = contrast(torch.cat([z1, z2], 0).transpose(0, 1))
        within = contrast(torch.cat([z1, z2], 1))
        loss, levels = loss + 0.5 * among + 0.5 * within, levels + 1
        z1, z2 = (F.max_pool1d(z.transpose(1, 2), 2).transpose(1, 2) for z in (z1, z2))
    among = contrast(torch.cat([z1, z2], 0).transpose(0, 1))
    return (loss + 0.5 * among) / (levels + 1)


def houses():
    """Days with a rhythm of their own, and noise, on the device."""
    moments = torch.arange(LONG, device=device)[:, None]
    pace = 0.05 + 0.2 * torch.rand(SERIES, 1, FEATURES, device=device)
    phase = 6.3 * torch.rand(SERIES, 1, FEATURES, device=device)
    return torch.sin(pace * moments + phase) + 0.3 * torch.randn(SERIES, LONG, FEATURES, device=device)


def main():
    series = houses()
    with device:
        encoder = Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SERIES, (BATCH,), device=device)
        first = int(torch.randint(LONG - SHARED - 2 * EXTRA + 1, ()))
        crop = series[chosen, first : first + SHARED + 2 * EXTRA]
        z1 = encoder(crop[:, : SHARED + EXTRA])[:, EXTRA:]
        z2 = encoder(crop[:, EXTRA:])[:, :SHARED]
        loss = hierarchical(z1, z2)
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
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
