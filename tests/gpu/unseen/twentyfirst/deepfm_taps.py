"""Who taps on an advertisement: factorization machines and a deep network over fields with a table each."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 500))
ROWS, BATCH, FIELDS, LARGEST, WIDE, DEEP = (
    (400, 16, 5, 40, 4, 16) if TINY else (1 << 20, 2048, 39, 20000, 16, 400)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
SIZES = [int(LARGEST ** (0.3 + 0.7 * i / FIELDS)) + 2 for i in range(FIELDS)]


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        first = [0.01 * torch.randn(size, 1) for size in SIZES]
        second = [0.01 * torch.randn(size, WIDE) for size in SIZES]
        if "one-table" in FIX:
            self.first = nn.Embedding.from_pretrained(torch.cat(first), freeze=False)
            self.second = nn.Embedding.from_pretrained(torch.cat(second), freeze=False)
        else:
            self.first, self.second = (
                nn.ModuleList(nn.Embedding.from_pretrained(table, freeze=False) for table in tables)
                for tables in (first, second)
            )
        self.register_buffer("begins", torch.tensor([0, *SIZES[:-1]]).cumsum(0))
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * WIDE, DEEP), nn.ReLU(), nn.Linear(DEEP, DEEP), nn.ReLU(), nn.Linear(DEEP, 1)
        )

    def forward(self, index, value):
        if "one-table" in FIX:
            places = index + self.begins
            first = (self.first(places)[..., 0] * value).sum(1)
            vectors = self.second(places) * value[..., None]
            of_sum, of_squares = vectors.sum(1).square(), vectors.square().sum(1)
            deep = vectors.flatten(1)
        else:
            # one field after the other: its weight, then its vector
            weights = [table(index[:, i])[:, 0] * value[:, i] for i, table in enumerate(self.first)]
            first = torch.stack(weights, 1).sum(1)
            vectors = [table(index[:, i]) * value[:, i, None] for i, table in enumerate(self.second)]
            of_sum = sum(vectors).square()
            of_squares = sum(vector * vector for vector in vectors)
            deep = torch.cat(vectors, 1)
        return self.bias + first + 0.5 * (of_sum - of_squares).sum(1) + self.deep(deep)[:, 0]


def seen():
    """What was shown to whom, and whether that was tapped on; a third of the fields are numbers."""
    sizes = torch.tensor(SIZES, device=device)
    index = (torch.rand(ROWS, FIELDS, device=device).square() * sizes).long()
    value = torch.ones(ROWS, FIELDS, device=device)
    index[:, : FIELDS // 3], value[:, : FIELDS // 3] = 0, torch.rand(ROWS, FIELDS // 3, device=device)
    liked = (index % 7 == 0).float().mean(1) + 0.3 * value[:, 0]
    return index, value, (liked > liked.mean()).float()


def main():
    index, value, tapped = seen()
    model = DeepFM().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.randint(ROWS, (BATCH,), device=device)
        logits = model(index[rows], value[rows])
        loss = F.binary_cross_entropy_with_logits(logits, tapped[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
