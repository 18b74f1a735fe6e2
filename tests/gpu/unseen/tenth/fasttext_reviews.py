"""Are these reviews friendly? The mean of their words' and word pairs' vectors, then one layer (fastText)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 500))
SIZE, BATCH, LONGEST, BUCKETS, WIDTH, CLASSES = (
    (64, 8, 20, 100, 8, 3) if TINY else (40_960, 4096, 400, 200_000, 300, 5)
)
PAD = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def reviews():
    """Few words are frequent and most are rare; some words make a review friendly."""
    places = torch.rand(SIZE, LONGEST, device=device)
    words = 1 + (places.pow(3) * (BUCKETS - 2)).long()
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (SIZE, 1), device=device)
    words[torch.arange(LONGEST, device=device) >= lengths] = PAD
    stars = (words % 7 == 3).sum(1).float()
    cuts = torch.quantile(stars, torch.linspace(0, 1, CLASSES + 1, device=device)[1:-1])
    return words, torch.bucketize(stars, cuts)


class FastText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(BUCKETS, WIDTH, padding_idx=PAD)
        nn.init.uniform_(self.embedding.weight, -1 / WIDTH, 1 / WIDTH)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
        self.out = nn.Linear(WIDTH, CLASSES)

    def mean(self, words):
        if "bags" in FIX:
            return F.embedding_bag(words, self.embedding.weight, mode="mean", padding_idx=PAD)
        mask = (words != PAD).float().unsqueeze(2)
        vectors = self.embedding(words) * mask
        return vectors.sum(1) / mask.sum(1)

    def forward(self, words):
        return self.out(self.mean(words))


def main():
    cuda = device.type == "cuda"
    words, labels = reviews()
    model = FastText().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=cuda)
    lead, began, shown, right, seen = min(STEPS // 2, 10), 0.0, 0.0, 0.0, 0
    order, at = torch.randperm(SIZE, device=device), 0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        if at + BATCH > SIZE:
            order, at = torch.randperm(SIZE, device=device), 0
        chosen = order[at : at + BATCH]
        at += BATCH
        logits = model(words[chosen])
        loss = F.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = (logits.argmax(1) == labels[chosen]).sum()
        if "figures-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            shown, right, seen = loss.item(), right + hits.item(), seen + len(chosen)
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}, right {right / seen:.3f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.4f} ms per step")


main()
