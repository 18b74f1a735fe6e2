"""Will it be bought? Everything a person bought before is weighed against what is on offer."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
PEOPLE, ITEMS, KINDS, BATCH, LONGEST, USUAL, WIDE = (
    (32, 60, 5, 8, 10, 3, 8) if TINY else (65_536, 200_000, 1000, 4096, 200, 14, 32)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


@dataclass
class Config:
    rate: float = 1e-3
    log_every: int = 20 if "loss-rarely" in FIX else 1


class Dice(nn.Module):
    """Either the number or a part of it, by how large it is among those of its column."""

    def __init__(self, wide):
        super().__init__()
        self.norm, self.part = nn.BatchNorm1d(wide, eps=1e-8, affine=False), nn.Parameter(torch.zeros(wide))

    def forward(self, x):
        chance = torch.sigmoid(self.norm(x))
        return chance * x + (1 - chance) * self.part * x


class Weigher(nn.Module):
    """How much each thing of the history matters for the offer."""

    def __init__(self, wide):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4 * wide, 80), nn.PReLU(), nn.Linear(80, 40), nn.PReLU(), nn.Linear(40, 1)
        )

    def forward(self, offer, bought):
        return self.net(torch.cat([offer, bought, offer - bought, offer * bought], -1))


class DIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDE, padding_idx=0)
        self.kinds = nn.Embedding(KINDS, WIDE, padding_idx=0)
        nn.init.normal_(self.items.weight, std=0.05)
        nn.init.normal_(self.kinds.weight, std=0.05)
        self.weigher = Weigher(2 * WIDE)
        self.head = nn.Sequential(
            nn.Linear(6 * WIDE, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1)
        )

    def look(self, items, kinds):
        return torch.cat([self.items(items), self.kinds(kinds)], -1)

    def forward(self, offer, bought, lengths):
        wanted = self.look(*offer)
        there = torch.arange(LONGEST, device=device) < lengths[:, None]
        if "real-places" in FIX:
            person, place = there.nonzero(as_tuple=True)
            things = self.look(*(one[person, place] for one in bought))
            weighed = self.weigher(wanted[person], things) * things
            history = torch.zeros_like(wanted).index_add(0, person, weighed)
        else:
            things = self.look(*bought)
            weights = self.weigher(wanted[:, None].expand(-1, LONGEST, -1), things)
            weights = weights.masked_fill(~there[:, :, None], 0)
            history = (weights * things).sum(1)
        return self.head(torch.cat([history, wanted, history * wanted], 1))[:, 0]


def shops():
    """Histories: most are short, few are very long. Who bought of a kind buys of it again."""
    kind_of = torch.randint(1, KINDS, (ITEMS,), device=device)
    lengths = (USUAL * torch.randn(PEOPLE, device=device).exp()).long().clamp(1, LONGEST)
    bought = torch.randint(1, ITEMS, (PEOPLE, LONGEST), device=device)
    bought[torch.arange(LONGEST, device=device) >= lengths[:, None]] = 0
    offered = torch.randint(1, ITEMS, (PEOPLE,), device=device)
    again = torch.rand(PEOPLE, device=device) < 0.5
    offered = torch.where(again, bought[:, 0], offered)
    return kind_of, lengths, bought, offered, again.float()


def main():
    config, (kind_of, lengths, bought, offered, labels) = Config(), shops()
    kind_of[0] = 0
    with device:
        model = DIN()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.rate, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(PEOPLE, (BATCH,), device=device)
        offer, history = offered[chosen], bought[chosen]
        scores = model((offer, kind_of[offer]), (history, kind_of[history]), lengths[chosen])
        loss = F.binary_cross_entropy_with_logits(scores, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.log_every == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
