"""A census that never was: a conditional adversarial network for tables of figures and kinds."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
ROWS, BATCH, FIGURES, MODES, KINDS, NOISE, WIDE, PACK = (
    (200, 20, 2, 3, (2, 3, 4), 8, 16, 10)
    if TINY
    else (200_000, 4000, 6, 10, (2, 2, 4, 5, 6, 7, 9, 15, 16, 42), 128, 256, 10)
)
SPANS = [*[("tanh", 1), ("softmax", MODES)] * FIGURES, *[("softmax", count) for count in KINDS]]
COLUMNS, CONDITION = sum(wide for _, wide in SPANS), sum(KINDS)
STARTS = np.cumsum((0, *KINDS[:-1]))  # of each column of kinds in a condition
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Sampler:
    """Rows of a table, found by a value that one of their columns has."""

    def __init__(self, table):
        self.table, self.rng = table, np.random.default_rng(0)
        self.rows, self.chances, at = [], [], COLUMNS - CONDITION
        for count in KINDS:
            value = table[:, at : at + count].argmax(1)
            self.rows.append([np.nonzero(value == one)[0] for one in range(count)])
            # Rare values come more often than they are.
            often = np.log([len(one) + 1.0 for one in self.rows[-1]])
            self.chances.append(np.cumsum(often / often.sum()))
            at += count
        self.flat = np.concatenate([one for rows in self.rows for one in rows])
        self.counts = np.array([len(one) for rows in self.rows for one in rows])
        self.begins = np.cumsum(self.counts) - self.counts

    def condition(self, count):
        """For each row some column and a value of it, one-hot, and which column it is."""
        columns, drawn = self.rng.integers(len(KINDS), size=count), self.rng.random(count)
        values = np.zeros(count, dtype=np.int64)
        for column, chances in enumerate(self.chances):
            mine = columns == column
            values[mine] = np.minimum(np.searchsorted(chances, drawn[mine]), len(chances) - 1)
        onehot, mask = np.zeros((count, CONDITION), "float32"), np.zeros((count, len(KINDS)), "float32")
        onehot[np.arange(count), STARTS[columns] + values] = 1
        mask[np.arange(count), columns] = 1
        return onehot, mask, columns, values

    def sample(self, columns, values):
        """Rows that have the values that were asked for."""
        if "rows-at-once" in FIX:
            value = STARTS[columns] + values
            return self.table[self.flat[self.begins[value] + self.rng.integers(self.counts[value])]]
        chosen = []
        for column, value in zip(columns, values, strict=True):
            chosen.append(self.rng.choice(self.rows[column][value]))
        return self.table[chosen]


class Residual(nn.Module):
    def __init__(self, enter):
        super().__init__()
        self.fc, self.norm = nn.Linear(enter, WIDE), nn.BatchNorm1d(WIDE)

    def forward(self, x):
        return torch.cat([F.relu(self.norm(self.fc(x))), x], 1)


def generator():
    enter = NOISE + CONDITION
    return nn.Sequential(Residual(enter), Residual(enter + WIDE), nn.Linear(enter + 2 * WIDE, COLUMNS))


class Critic(nn.Module):
    """Looks at ten rows at a time."""

    def __init__(self):
        super().__init__()
        self.enter = PACK * (COLUMNS + CONDITION)
        layers = [nn.Linear(self.enter, WIDE), nn.LeakyReLU(0.2), nn.Linear(WIDE, WIDE), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDE, 1))

    def forward(self, x):
        return self.layers(x.view(-1, self.enter))

    def penalty(self, real, fake):
        mixed = torch.rand(len(real) // PACK, 1, 1, device=device).expand(-1, PACK, real.shape[1])
        mixed = mixed.reshape(-1, real.shape[1])
        between = (mixed * real + (1 - mixed) * fake).requires_grad_()
        judged = self(between)
        slope = torch.autograd.grad(judged, between, torch.ones_like(judged), create_graph=True)[0]
        return 10 * (slope.view(-1, self.enter).norm(2, 1) - 1).square().mean()


def activated(raw):
    """Each column as what it is: a figure, or a draw of kinds."""
    parts = []
    for part, (kind, _) in zip(raw.split([wide for _, wide in SPANS], 1), SPANS, strict=True):
        parts.append(part.tanh() if kind == "tanh" else F.gumbel_softmax(part, tau=0.2))
    return torch.cat(parts, 1)


def condition_loss(raw, asked, mask):
    """Do rows have what they were asked to have?"""
    losses, logits = [], raw[:, COLUMNS - CONDITION :]
    for part, wanted in zip(logits.split(KINDS, 1), asked.split(KINDS, 1), strict=True):
        losses.append(F.cross_entropy(part, wanted.argmax(1), reduction="none"))
    return (torch.stack(losses, 1) * mask).sum() / len(raw)


def census():
    """Figures with the mode that they are of, and kinds of which some are rare, each one-hot."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(FIGURES):
        parts += [rng.uniform(-1, 1, (ROWS, 1)), np.eye(MODES)[rng.integers(MODES, size=ROWS)]]
    for count in KINDS:
        value = (count * rng.random(ROWS) ** 2).astype(int)
        value[:count] = np.arange(count)
        parts.append(np.eye(count)[value])
    return np.concatenate(parts, 1).astype("float32")


def main():
    sampler = Sampler(census())
    with device:
        make, judge = generator(), Critic()
    to_make, to_judge = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.9), weight_decay=1e-6)
        for net in (make, judge)
    )
    lead, began, shown = min(STEPS // 2, 6), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        asked, _, columns, values = sampler.condition(BATCH)
        order = sampler.rng.permutation(BATCH)
        real = torch.from_numpy(sampler.sample(columns[order], values[order])).to(device)
        asked = torch.from_numpy(asked).to(device)
        noise = torch.randn(BATCH, NOISE, device=device)
        fake = activated(make(torch.cat([noise, asked], 1)))
        real, fake = (
            torch.cat([real, asked[torch.from_numpy(order).to(device)]], 1),
            torch.cat([fake, asked], 1),
        )
        penalty = judge.penalty(real, fake.detach())
        judged = judge(fake.detach()).mean() - judge(real).mean()
        to_judge.zero_grad()
        (judged + penalty).backward()
        to_judge.step()

        asked, mask, _, _ = sampler.condition(BATCH)
        asked, mask = torch.from_numpy(asked).to(device), torch.from_numpy(mask).to(device)
        raw = make(torch.cat([torch.randn(BATCH, NOISE, device=device), asked], 1))
        made = condition_loss(raw, asked, mask) - judge(torch.cat([activated(raw), asked], 1)).mean()
        to_make.zero_grad()
        made.backward()
        to_make.step()
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = judged.item(), made.item()
        if step % 20 == 0:
            print(f"step {step}: critic {shown[0]:.4f}, generator {shown[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.5f}, {shown[1]:.5f}; {each:.3f} ms per step")


main()
