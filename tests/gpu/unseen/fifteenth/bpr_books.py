"""Which book is next? Factors of readers and books by pairs of what was read and what was not."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 300))
READERS, BOOKS, READ, BATCH, WIDE = (
    (50, 80, 400, 16, 8) if TINY else (6_000_000, 4_000_000, 20_000_000, 16_384, 64)
)
SPARSE = "sparse-gradients" in FIX
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.readers = nn.Embedding(READERS, WIDE, sparse=SPARSE)
        self.books = nn.Embedding(BOOKS, WIDE, sparse=SPARSE)
        self.liked = nn.Embedding(BOOKS, 1, sparse=SPARSE)
        for table in (self.readers, self.books):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.liked.weight)

    def forward(self, readers, read, other):
        """How much more the reader likes the one than the other, and how large the factors are."""
        reader, one, two = self.readers(readers), self.books(read), self.books(other)
        more = (reader * (one - two)).sum(1) + (self.liked(read) - self.liked(other))[:, 0]
        size = reader.square().sum(1) + one.square().sum(1) + two.square().sum(1)
        return more, size


def readings():
    """Readers like books of their own kind, and a few books are read by many."""
    readers = torch.randint(READERS, (READ,), device=device)
    popular = (torch.rand(READ, device=device).square() * (BOOKS // 16)).long()
    return readers, (readers % 16) + 16 * popular


def main():
    readers, books = readings()
    with device:
        model = Factors()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)
    lead, began, shown, right = min(STEPS // 2, 10), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(READ, (BATCH,), device=device)
        other = torch.randint(BOOKS, (BATCH,), device=device)
        more, size = model(readers[chosen], books[chosen], other)
        loss = -F.logsigmoid(more).mean() + 1e-4 * size.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            shown, right = loss.item(), (more > 0).float().mean().item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}, {100 * right:.1f} % of pairs right")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, right {right:.4f}; {each:.3f} ms per step")


main()
