"""What is put into a basket next? A recurrent network reads what was looked at in a visit to a shop."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 600))
ITEMS, VISITS, LONG, BATCH, WIDE, HIDDEN = (
    (60, 32, 5, 4, 8, 8) if TINY else (40_000, 65_536, 20, 256, 128, 256)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def visits():
    """Items of each visit, (visits, LONG + 1), which lie near one another in the shop."""
    first = torch.randint(ITEMS, (VISITS, 1), device=device)
    walk = torch.randint(-3, 4, (VISITS, LONG + 1), device=device).cumsum(1)
    return (first + walk) % ITEMS


class GRU4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(ITEMS, WIDE, bias=False)
        self.gru = nn.GRU(WIDE, HIDDEN, batch_first=True)
        self.scores = nn.Linear(HIDDEN, ITEMS)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, items):
        if "looked-up" in FIX:
            x = F.embedding(items, self.embed.weight.T)
        else:
            x = self.embed(F.one_hot(items, ITEMS).float())
        x, _ = self.gru(x)
        return self.scores(x)


def recall(logits, items):
    """How often the item that follows is among the first twenty."""
    best = logits[:, -1].topk(min(20, ITEMS)).indices
    return (best == items[:, -1:]).any(1).float().mean()


def main():
    seen = visits()
    with device:
        model = GRU4Rec()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 20), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = seen[torch.randint(VISITS, (BATCH,), device=device)]
        items, follows = batch[:, :-1], batch[:, 1:]
        logits = model(items)
        loss = F.cross_entropy(logits.flatten(0, 1), follows.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {shown:.4f}, recall {recall(logits.detach(), follows).item():.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
