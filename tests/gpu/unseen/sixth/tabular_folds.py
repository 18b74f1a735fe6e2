"""Incomes from a table of numbers and categories: a feature tokenizer, a transformer, five folds."""

import os
import time

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 60))
ROWS, BATCH, WIDTH, LAYERS, HEADS = (80, 16, 16, 1, 2) if TINY else (5120, 256, 192, 3, 8)
NUMBERS = ["age", "hours", "gain", "loss", "years", "weight", "distance", "rooms", "debt", "savings"]
LEVELS = {"work": 9, "school": 16, "family": 7, "job": 15, "kin": 6, "sex": 2, "country": 42, "area": 51}
FOLDS, EPOCHS = 5, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def table():
    rng = np.random.default_rng(0)
    columns = {name: rng.gamma(2.0, 1.0, ROWS) for name in NUMBERS}
    columns |= {name: rng.integers(0, levels, ROWS) for name, levels in LEVELS.items()}
    frame = pd.DataFrame(columns)
    score = frame["years"] * frame["hours"] + frame["school"] / 4 + rng.normal(0, 1, ROWS)
    frame["rich"] = (score > score.median()).astype(int)
    return frame


class TableDataset(Dataset):
    def __init__(self, frame):
        self.frame = frame.reset_index(drop=True)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        row = self.frame.iloc[idx]
        numbers = torch.tensor(row[NUMBERS].values.astype(np.float32))
        categories = torch.tensor(row[list(LEVELS)].values.astype(np.int64))
        return numbers, categories, torch.tensor(row["rich"], dtype=torch.float32)


class OnDevice:
    """The whole table as three tensors; a batch is rows of them."""

    def __init__(self, frame, batch_size, shuffle):
        self.numbers = torch.tensor(frame[NUMBERS].values, dtype=torch.float32, device=device)
        self.categories = torch.tensor(frame[list(LEVELS)].values, dtype=torch.long, device=device)
        self.target = torch.tensor(frame["rich"].values, dtype=torch.float32, device=device)
        self.batch_size, self.shuffle = batch_size, shuffle

    def __iter__(self):
        n = len(self.target)
        order = torch.randperm(n, device=device) if self.shuffle else torch.arange(n, device=device)
        for rows in order.split(self.batch_size):
            yield self.numbers[rows], self.categories[rows], self.target[rows]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH))
        value, gate = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(value * F.relu(gate))


class FTTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(len(NUMBERS), WIDTH))
        self.bias = nn.Parameter(torch.zeros(len(NUMBERS) + len(LEVELS), WIDTH))
        self.embed = nn.Embedding(sum(LEVELS.values()), WIDTH)
        offsets = torch.tensor([0, *LEVELS.values()]).cumsum(0)[:-1]
        self.register_buffer("offsets", offsets)
        self.cls = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, numbers, categories):
        tokens = torch.cat([numbers[..., None] * self.weight, self.embed(categories + self.offsets)], 1)
        x = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens + self.bias], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, 0]))).squeeze(-1)


def loader_of(frame, shuffle):
    if "on-device" in FIX:
        return OnDevice(frame, BATCH, shuffle)
    return DataLoader(TableDataset(frame), batch_size=BATCH, shuffle=shuffle)


def evaluate(model, loader):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for numbers, categories, target in loader:
            logits = model(numbers.to(device), categories.to(device))
            right += ((logits > 0) == (target.to(device) > 0.5)).sum()
            seen += len(target)
    return float(right) / seen


frame = table()
fold_of = np.random.default_rng(1).integers(0, FOLDS, ROWS)
scores, times, step, seed = [], [], 0, 0
while step < STEPS:
    for fold in range(FOLDS):
        if step >= STEPS:
            break
        torch.manual_seed(seed)
        train, valid = frame[fold_of != fold], frame[fold_of == fold]
        mean, std = train[NUMBERS].mean(), train[NUMBERS].std()
        train, valid = (one.assign(**((one[NUMBERS] - mean) / std)) for one in (train, valid))
        train_loader, valid_loader = loader_of(train, True), loader_of(valid, False)
        model = FTTransformer().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
        for epoch in range(EPOCHS):
            if step >= STEPS:
                break
            model.train()
            losses, began = [], time.perf_counter()
            for numbers, categories, target in train_loader:
                numbers, categories = numbers.to(device), categories.to(device)
                loss = F.binary_cross_entropy_with_logits(model(numbers, categories), target.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach() if "loss-rarely" in FIX else loss.item())
                times.append(time.perf_counter() - began)
                began = time.perf_counter()
                step += 1
                if step >= STEPS:
                    break
            mean_loss = float(sum(losses)) / len(losses)
            accuracy = evaluate(model, valid_loader)
            print(f"seed {seed} fold {fold} epoch {epoch}: loss {mean_loss:.4f} accuracy {accuracy:.4f}")
        scores.append(accuracy)
    seed += 1
kept = times[min(STEPS // 2, 6) :]
print(f"accuracy {np.mean(scores):.4f} of {len(scores)} folds; {1e3 * sum(kept) / len(kept):.3f} ms/batch")
