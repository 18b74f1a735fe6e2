"""How well are facts guessed? Ranks of right answers among all things but those that are right, too."""

import logging
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # batches of the test
THINGS, RELATIONS, BATCH, FACTS, GRID = (50, 4, 8, 200, 4) if TINY else (40_943, 22, 256, 12_800, 20)
WIDE = GRID * GRID // 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("conve")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
rng = np.random.default_rng(0)


class ConvE(nn.Module):
    def __init__(self):
        super().__init__()
        self.things, self.relations = nn.Embedding(THINGS, WIDE), nn.Embedding(RELATIONS, WIDE)
        self.norm0, self.conv = nn.BatchNorm2d(1), nn.Conv2d(1, 32, 3)
        self.norm1, self.norm2 = nn.BatchNorm2d(32), nn.BatchNorm1d(WIDE)
        self.flat, self.bias = nn.Linear(32 * (GRID - 2) ** 2, WIDE), nn.Parameter(torch.zeros(THINGS))

    def forward(self, subject, relation):
        both = [one.view(-1, 1, GRID // 2, GRID) for one in (self.things(subject), self.relations(relation))]
        x = F.relu(self.norm1(self.conv(self.norm0(torch.cat(both, 2)))))
        x = F.relu(self.norm2(self.flat(x.flatten(1))))
        return x @ self.things.weight.T + self.bias


def facts():
    """Questions with their answers; for each all that would be right, too."""
    subject, relation = rng.integers(THINGS, size=FACTS), rng.integers(RELATIONS, size=FACTS)
    known = {}
    for s, r in zip(subject.tolist(), relation.tolist(), strict=True):
        if (s, r) not in known:
            known[s, r] = rng.choice(THINGS, 1 + min(int(rng.exponential(6)), 20), replace=False).tolist()
    answer = [
        known[s, r][rng.integers(len(known[s, r]))]
        for s, r in zip(subject.tolist(), relation.tolist(), strict=True)
    ]
    return torch.tensor(subject), torch.tensor(relation), torch.tensor(answer), known


def ranks_one_by_one(scores, answer, filters):
    """Other right answers are taken out of each row; then it is sorted, and the answer looked for."""
    for i in range(len(scores)):
        right = scores[i, answer[i]].item()
        scores[i, filters[i]] = -1e9
        scores[i, answer[i]] = right
    _, order = torch.sort(scores, 1, descending=True)
    order = order.cpu().numpy()
    return [int(np.where(order[i] == answer[i].item())[0][0]) + 1 for i in range(len(scores))]


def ranks_together(scores, answer, filters):
    """How many are higher than the right one, in all rows at once."""
    rows = torch.tensor([i for i, one in enumerate(filters) for _ in one]).to(device)
    others = torch.tensor([other for one in filters for other in one]).to(device)
    right = scores.gather(1, answer.to(device)[:, None])
    scores[rows, others] = -1e9
    return ((scores > right).sum(1) + 1).tolist()


@torch.no_grad()
def ranking_and_hits(model, test):
    subjects, relations, answers, known = test
    model.eval()
    ranks, hits, began, spread = [], [[] for _ in range(10)], 0.0, 0.0
    lead = min(STEPS // 2, 5)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = slice(step * BATCH % FACTS, step * BATCH % FACTS + BATCH)
        subject, relation, answer = subjects[at], relations[at], answers[at]
        scores = model(subject.to(device), relation.to(device))
        if "spread-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            spread = scores.std().item()
        filters = [known[one] for one in zip(subject.tolist(), relation.tolist(), strict=True)]
        rank = (ranks_together if "ranks-counted" in FIX else ranks_one_by_one)(scores, answer, filters)
        for one in rank:
            ranks.append(one)
            for level in range(10):
                hits[level].append(1.0 if one <= level + 1 else 0.0)
        if step % 20 == 0:
            log.info("batch %d: mean rank %.1f, spread %.3f", step, np.mean(ranks), spread)
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    inverse = np.mean(1 / np.array(ranks))
    print(
        f"mean rank {np.mean(ranks):.3f}, inverse {inverse:.6f}, hits at 10 {np.mean(hits[9]):.4f}, "
        f"spread {spread:.4f}; {each:.3f} ms per step"
    )


with device:
    model = ConvE()
    nn.init.normal_(model.things.weight, std=0.3)
ranking_and_hits(model, facts())
