"""Where do people walk? Each one's path follows from its own past and from who else is in the scene."""

import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SCENES, BATCH, MOST, SEEN, AHEAD, WIDE, POOLED = (
    (12, 3, 4, 4, 3, 16, 16) if TINY else (640, 32, 16, 8, 12, 64, 256)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)


class Pool(nn.Module):
    """What all others in the scene do, as the largest of what is said of each of them."""

    def __init__(self):
        super().__init__()
        self.where = nn.Linear(2, WIDE)
        self.first, self.second = nn.Linear(2 * WIDE, POOLED), nn.Linear(POOLED, WIDE)

    def pairs(self, hidden, away):
        return F.relu(self.second(F.relu(self.first(torch.cat([self.where(away), hidden], 1)))))

    def forward(self, hidden, places, scenes, pairs):
        if "scenes-together" in FIX:
            one, other = pairs
            said = self.pairs(hidden[other], places[other] - places[one])
            into = torch.zeros(len(hidden), WIDE, device=hidden.device, dtype=said.dtype)
            return into.scatter_reduce(0, one[:, None].expand_as(said), said, "amax")
        pooled = []
        for start, end in scenes:
            count = end - start
            others = hidden[start:end].repeat(count, 1)
            here = places[start:end]
            away = here.repeat(count, 1) - here.repeat_interleave(count, 0)
            pooled.append(self.pairs(others, away).view(count, count, -1).max(1)[0])
        return torch.cat(pooled)


class Walkers(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.encoder = nn.Linear(2, WIDE), nn.LSTM(WIDE, WIDE)
        self.decoder, self.pool = nn.LSTMCell(WIDE, WIDE), Pool()
        self.join, self.leave = nn.Linear(2 * WIDE, WIDE), nn.Linear(WIDE, 2)

    def forward(self, places, scenes, pairs):
        steps = places[1:] - places[:-1]
        hidden, cell = (one.squeeze(0) for one in self.encoder(self.enter(steps))[1])
        place, step, found = places[-1], steps[-1], []
        for _ in range(AHEAD):
            hidden, cell = self.decoder(self.enter(step), (hidden, cell))
            hidden = torch.tanh(self.join(torch.cat([hidden, self.pool(hidden, place, scenes, pairs)], 1)))
            step = self.leave(hidden)
            place = place + step
            found.append(place)
        return torch.stack(found)


def crowds():
    """Scenes of people who walk, each its own way, and turn slowly."""
    scenes = []
    for _ in range(SCENES):
        count = random.randint(2, MOST)
        turn = torch.rand(count) * 6.28 + 0.1 * torch.randn(count) * torch.arange(SEEN + AHEAD)[:, None]
        steps = 0.4 * torch.stack([turn.cos(), turn.sin()], 2)
        scenes.append((4 * torch.randn(count, 2) + steps.cumsum(0)).to(device))
    return scenes


def collate(chosen):
    """Paths of several scenes side by side, where each scene begins and ends, and who is together."""
    scenes, start = [], 0
    for one in chosen:
        scenes.append((start, start + one.shape[1]))
        start += one.shape[1]
    pairs = [(i, j) for start, end in scenes for i in range(start, end) for j in range(start, end)]
    return torch.cat(chosen, 1), scenes, torch.tensor(pairs, device=device).unbind(1)


def main():
    scenes = crowds()
    batches = [collate(scenes[i : i + BATCH]) for i in range(0, SCENES - BATCH + 1, BATCH)]
    with device:
        model = Walkers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        places, bounds, pairs = batches[step % len(batches)]
        found = model(places[:SEEN], bounds, pairs)
        loss = (found - places[SEEN:]).square().sum(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
