"""Will a loan be paid back? Columns of a table, some of them kinds, some numbers. From a notebook."""

# %% What is needed
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 450))
LOANS, BATCH, WIDE = (120, 16, 16) if TINY else (400_000, 2048, 512)
KINDS, NUMBERS = (2, 2, 3, 5, 7, 12, 14, 35, 51, 300, 900, 2300), 28  # kinds in each column
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)

# %% The table: kinds as numbers, numbers with mean 0 and deviation 1
kinds = np.stack([rng.integers(0, many, LOANS) for many in KINDS], 1)
numbers = rng.standard_normal((LOANS, NUMBERS)).astype(np.float32)
paid = numbers[:, 0] + 0.5 * numbers[:, 1] * (kinds[:, 3] - 2) + 0.02 * (kinds[:, 7] - 17)
paid = (paid + rng.standard_normal(LOANS) > 0).astype(np.float32)
held_out = LOANS // 10
train_rows, valid_rows = np.arange(held_out, LOANS), np.arange(held_out)


# %% The data set
class LoanDataset(Dataset):
    def __init__(self, rows):
        self.kinds, self.numbers, self.paid = kinds[rows], numbers[rows], paid[rows]

    def __len__(self):
        return len(self.paid)

    def __getitem__(self, i):
        return self.kinds[i], self.numbers[i], self.paid[i]


generator = torch.Generator().manual_seed(0)
train_set = LoanDataset(train_rows)
train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, drop_last=True, generator=generator)


# %% The same, with all columns on the device
def batches():
    if "on-device" not in FIX:
        yield from train_loader
        return
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a loader does
    for rows in train_loader.batch_sampler:
        rows = torch.tensor(rows).to(device)
        yield [column[rows] for column in columns]


if "on-device" in FIX:
    columns = [
        torch.from_numpy(column).to(device) for column in (train_set.kinds, train_set.numbers, train_set.paid)
    ]


# %% The model: a vector for each kind
class TabularModel(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [(many, min(50, (many + 1) // 2)) for many in KINDS]
        self.embeddings = nn.ModuleList([nn.Embedding(*size) for size in sizes])
        enter = sum(size for _, size in sizes) + NUMBERS
        self.norm, self.drop = nn.BatchNorm1d(NUMBERS), nn.Dropout(0.05)
        layers = []
        for leave in (WIDE, WIDE // 2):
            layers += [nn.Linear(enter, leave), nn.ReLU(), nn.BatchNorm1d(leave), nn.Dropout(0.2)]
            enter = leave
        self.layers = nn.Sequential(*layers, nn.Linear(enter, 1))

    def forward(self, kinds, numbers):
        x = [embedding(kinds[:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.layers(torch.cat([self.drop(torch.cat(x, 1)), self.norm(numbers)], 1))[:, 0]


model = TabularModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# %% Training
lead, began, shown, step, epoch = min(STEPS // 2, 10), 0.0, 0.0, 0, 0
while step < STEPS:
    for x_kinds, x_numbers, y in batches():
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        x_kinds, x_numbers, y = x_kinds.to(device), x_numbers.to(device), y.to(device)
        loss = F.binary_cross_entropy_with_logits(model(x_kinds, x_numbers), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        step += 1
        if step == STEPS:
            break
    epoch += 1
    print(f"epoch {epoch}: loss {shown:.4f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)

# %% How good is it? The area under the curve, by ranks
model.eval()
with torch.no_grad():
    chances = model(*(torch.from_numpy(part[valid_rows]).to(device) for part in (kinds, numbers)))
ranks = chances.argsort().argsort().cpu().numpy() + 1
good = paid[valid_rows] == 1
area = (ranks[good].sum() - good.sum() * (good.sum() + 1) / 2) / (good.sum() * (~good).sum())
print(f"area {area:.4f}, loss {shown:.6f}; {each:.3f} ms per step")
