"""Neural collaborative filtering: epochs of training, each with a test on one film of each user."""

import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 150))  # of training
EPOCH, USERS, ITEMS, BATCH, TESTED, WRONG, WIDE = (
    (2, 30, 120, 16, 5, 99, 8) if TINY else (25, 20_000, 10_000, 16_384, 250, 99, 64)
)
TOP = 10
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class NeuMF(nn.Module):
    """What users and items have in common, once as a product and once by a network."""

    def __init__(self):
        super().__init__()
        self.users_mf, self.items_mf = nn.Embedding(USERS, WIDE), nn.Embedding(ITEMS, WIDE)
        self.users_mlp, self.items_mlp = nn.Embedding(USERS, 2 * WIDE), nn.Embedding(ITEMS, 2 * WIDE)
        for table in (self.users_mf, self.items_mf, self.users_mlp, self.items_mlp):
            nn.init.normal_(table.weight, std=0.01)
        self.mlp = nn.Sequential(
            nn.Linear(4 * WIDE, 2 * WIDE), nn.ReLU(), nn.Linear(2 * WIDE, WIDE), nn.ReLU(), nn.Dropout(0.0)
        )
        self.predict = nn.Linear(2 * WIDE, 1)

    def forward(self, users, items):
        common = self.users_mf(users) * self.items_mf(items)
        deep = self.mlp(torch.cat([self.users_mlp(users), self.items_mlp(items)], 1))
        return self.predict(torch.cat([common, deep], 1))[:, 0]


def interactions(count):
    """Users like items of their own group, on the device."""
    users = torch.randint(USERS, (count,), device=device)
    return users, (users % 20 + 20 * torch.randint(ITEMS // 20, (count,), device=device)) % ITEMS


def train_step(model, optimizer, criterion, data):
    users, items = data
    chosen = torch.randint(len(users), (BATCH // 4,), device=device)
    wrong = torch.randint(ITEMS, (3 * BATCH // 4,), device=device)
    labels = torch.cat([torch.ones(BATCH // 4, device=device), torch.zeros(3 * BATCH // 4, device=device)])
    loss = criterion(model(users[chosen].repeat(4), torch.cat([items[chosen], wrong])), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def metrics(model, tests):
    """The first item of each user is the one that was left out."""
    model.eval()
    hits, gains = [], []
    if "users-together" in FIX:
        users = torch.tensor([user for user, _ in tests], device=device).repeat_interleave(WRONG + 1)
        items = torch.tensor(np.stack([items for _, items in tests]), device=device)
        best = model(users, items.flatten()).view(len(tests), -1).topk(TOP).indices
        right = items.gather(1, best) == items[:, :1]
        gain = right / (torch.arange(TOP, device=device) + 2.0).log2()
        hits, gains = right.any(1).tolist(), gain.sum(1).tolist()
        model.train()
        return np.mean(hits), np.mean(gains)
    for user, items in tests:
        users = torch.full((WRONG + 1,), user).to(device)
        candidates = torch.from_numpy(items).to(device)
        _, best = torch.topk(model(users, candidates), TOP)
        recommended = torch.take(candidates, best).cpu().numpy().tolist()
        found = items[0] in recommended
        hits.append(found)
        gains.append(1 / math.log2(recommended.index(items[0]) + 2) if found else 0.0)
    model.train()
    return np.mean(hits), np.mean(gains)


def main():
    data, rng = interactions(50 * BATCH), np.random.default_rng(0)
    tests = []
    for user in rng.choice(USERS, TESTED, replace=False):
        mine = (user % 20 + 20 * rng.integers(ITEMS // 20)) % ITEMS
        others = rng.choice(ITEMS - 1, WRONG, replace=False)
        tests.append((int(user), np.append(mine, others + (others >= mine))))
    with device:
        model = NeuMF()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    criterion, ends, best, shown = nn.BCEWithLogitsLoss(), [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            loss = train_step(model, optimizer, criterion, data)
            if "loss-rarely" not in FIX or step % EPOCH == 0 or step == STEPS - 1:
                shown = loss.item()
            if step % EPOCH == EPOCH - 1:
                hit, gain = metrics(model, tests)
                ends.append(time.perf_counter())
                print(f"epoch {len(ends)}: loss {shown:.4f}, hits {hit:.3f}, gain {gain:.3f}")
                best = max(best, hit)
        torch.save(model.state_dict(), Path(folder, "last.pt"))
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * EPOCH)
    print(f"loss {shown:.5f}, best {best:.4f}; {each:.3f} ms per step with its share of the test")


main()
