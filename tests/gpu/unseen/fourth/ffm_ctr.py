"""Click-through rates with a field-aware factorization machine: 26 fields of categories, in plain PyTorch."""

import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 80))
FIELDS, EMBED, BATCH, LOG = (5, 4, 16, 2) if TINY else (26, 8, 2048, 50)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2021)
field_dims = np.random.default_rng(0).integers(10, 200 if TINY else 12_000, FIELDS)


class FeaturesLinear(nn.Module):
    def __init__(self, field_dims, output_dim=1):
        super().__init__()
        self.fc = nn.Embedding(int(sum(field_dims)), output_dim)
        self.bias = nn.Parameter(torch.zeros(output_dim))
        self.offsets = np.array((0, *np.cumsum(field_dims)[:-1]), dtype=np.int64)
        self.register_buffer("offsets_there", torch.from_numpy(self.offsets), persistent=False)

    def forward(self, x):
        offsets = self.offsets_there if "offsets-buffer" in FIX else x.new_tensor(self.offsets)
        return self.fc(x + offsets.unsqueeze(0)).sum(1) + self.bias


class FieldAware(nn.Module):
    """Every field has a table of all features: how they look to that field."""

    def __init__(self, field_dims, embed_dim):
        super().__init__()
        self.num_fields = len(field_dims)
        self.tables = nn.ModuleList(nn.Embedding(int(sum(field_dims)), embed_dim) for _ in field_dims)
        self.offsets = np.array((0, *np.cumsum(field_dims)[:-1]), dtype=np.int64)
        self.register_buffer("offsets_there", torch.from_numpy(self.offsets), persistent=False)
        upper = torch.triu(torch.ones(self.num_fields, self.num_fields), 1).flatten().nonzero().squeeze(1)
        self.register_buffer("upper", upper, persistent=False)
        for table in self.tables:
            nn.init.xavier_uniform_(table.weight.data)

    def forward(self, x):
        offsets = self.offsets_there if "offsets-buffer" in FIX else x.new_tensor(self.offsets)
        x = x + offsets.unsqueeze(0)
        xs = [table(x) for table in self.tables]
        if "pairs-at-once" in FIX:
            seen = torch.stack(xs, 1)  # batch, by whom, of whom, embed
            return (seen * seen.transpose(1, 2)).flatten(1, 2).index_select(1, self.upper)
        ix = []
        for i in range(self.num_fields - 1):
            for j in range(i + 1, self.num_fields):
                ix.append(xs[j][:, i] * xs[i][:, j])
        return torch.stack(ix, dim=1)


class FieldAwareFactorizationMachine(nn.Module):
    def __init__(self, field_dims, embed_dim):
        super().__init__()
        self.linear = FeaturesLinear(field_dims)
        self.ffm = FieldAware(field_dims, embed_dim)

    def forward(self, x):
        ffm_term = self.ffm(x).sum(1).sum(1, keepdim=True)
        return torch.sigmoid((self.linear(x) + ffm_term).squeeze(1))


class EarlyStopper:
    def __init__(self, trials):
        self.trials, self.counter, self.best = trials, 0, 0.0

    def is_continuable(self, accuracy):
        self.counter = 0 if accuracy > self.best else self.counter + 1
        self.best = max(self.best, accuracy)
        return self.counter < self.trials


def synthetic(rows):
    """Impressions whose clicks depend on two of their fields."""
    columns = [torch.randint(0, int(size), (rows,)) for size in field_dims]
    features = torch.stack(columns, 1)
    chance = torch.sigmoid((features[:, 0] % 7).float() - 3 + (features[:, 1] % 3).float())
    return features, torch.bernoulli(chance)


features, clicks = synthetic(1000 if TINY else 200_000)
model = FieldAwareFactorizationMachine(field_dims, EMBED).to(device)
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
stopper = EarlyStopper(trials=3)


def batches():
    while True:
        for rows in torch.randperm(len(features)).split(BATCH):
            if len(rows) == BATCH:
                yield features[rows], clicks[rows]


model.train()
loader, total_loss, times = batches(), 0.0, []
for i in range(STEPS):
    start = time.perf_counter()
    fields, target = next(loader)
    fields, target = fields.to(device), target.to(device)
    y = model(fields)
    loss = criterion(y, target)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    total_loss += loss.item()
    times.append(time.perf_counter() - start)
    if (i + 1) % LOG == 0:
        print(f"    - loss: {total_loss / LOG:.4f}")
        total_loss = 0.0
model.eval()
with torch.no_grad():
    fields, target = next(loader)
    accuracy = ((model(fields.to(device)) > 0.5) == (target.to(device) > 0.5)).float().mean().item()
print(f"validation accuracy {accuracy:.4f}, go on: {stopper.is_continuable(accuracy)}")
print(f"last loss {loss.item():.5f}, {1e3 * np.mean(times[len(times) // 5 :]):.3f} ms/it")
