"""Rainbow learns to land: a dueling network of noisy layers and a replay that prefers what surprised it."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 300))
CAPACITY, BATCH, ENVS, SIZE, ACTIONS, HIDDEN, ATOMS = (
    (64, 8, 2, 6, 3, 16, 11) if TINY else (262_144, 512, 16, 24, 6, 512, 51)
)
LOW, HIGH, GAMMA, ALPHA, EVERY = -10.0, 10.0, 0.99, 0.5, 200
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class SumTree:
    """A binary tree whose leaves are priorities; every other node is the sum of its two children."""

    def __init__(self):
        self.sums = np.zeros(2 * CAPACITY - 1)

    def total(self):
        return self.sums[0]

    def propagate(self, node, change):
        parent = (node - 1) // 2
        self.sums[parent] += change
        if parent:
            self.propagate(parent, change)

    def retrieve(self, node, value):
        left = 2 * node + 1
        if left >= len(self.sums):
            return node
        if value <= self.sums[left]:
            return self.retrieve(left, value)
        return self.retrieve(left + 1, value - self.sums[left])

    def update(self, places, priorities):
        if "vector-tree" in FIX:
            self.update_all(places, priorities)
            return
        for place, priority in zip(places, priorities, strict=True):
            node = place + CAPACITY - 1
            change = priority - self.sums[node]
            self.sums[node] = priority
            self.propagate(node, change)

    def update_all(self, places, priorities):
        nodes = places + CAPACITY - 1
        self.sums[nodes] = priorities
        while nodes[0]:
            nodes = np.unique((nodes - 1) // 2)
            self.sums[nodes] = self.sums[2 * nodes + 1] + self.sums[2 * nodes + 2]

    def find(self, values):
        if "vector-tree" in FIX:
            return self.find_all(values)
        return np.array([self.retrieve(0, value) for value in values]) - (CAPACITY - 1)

    def find_all(self, values):
        nodes = np.zeros(len(values), dtype=np.int64)
        while 2 * nodes[0] + 1 < len(self.sums):
            left = 2 * nodes + 1
            right = values > self.sums[left]
            values = np.where(right, values - self.sums[left], values)
            nodes = left + right
        return nodes - (CAPACITY - 1)


class Replay:
    def __init__(self):
        self.tree, self.at, self.largest = SumTree(), 0, 1.0
        self.states = np.zeros((CAPACITY, SIZE), dtype=np.float32)
        self.nexts = np.zeros((CAPACITY, SIZE), dtype=np.float32)
        self.actions = np.zeros(CAPACITY, dtype=np.int64)
        self.rewards, self.ends = np.zeros(CAPACITY, dtype=np.float32), np.zeros(CAPACITY, dtype=np.float32)

    def add(self, states, actions, rewards, nexts, ends):
        places = (self.at + np.arange(len(states))) % CAPACITY
        self.states[places], self.nexts[places], self.actions[places] = states, nexts, actions
        self.rewards[places], self.ends[places] = rewards, ends
        self.tree.update(places, np.full(len(places), self.largest))
        self.at += len(states)

    def sample(self, beta=0.5):
        part = self.tree.total() / BATCH
        places = self.tree.find((np.arange(BATCH) + rng.random(BATCH)) * part)
        chances = self.tree.sums[places + CAPACITY - 1] / self.tree.total()
        weights = (min(self.at, CAPACITY) * chances) ** -beta
        arrays = (self.states, self.actions, self.rewards, self.nexts, self.ends)
        batch = [torch.from_numpy(one[places]).to(device) for one in arrays]
        return places, torch.from_numpy(weights / weights.max()).float().to(device), batch

    def surprise(self, places, errors):
        priorities = (errors + 1e-6) ** ALPHA
        self.largest = max(self.largest, float(priorities.max()))
        self.tree.update(places, priorities)


class Noisy(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.mean, self.bias = nn.Linear(inputs, outputs), nn.Parameter(torch.zeros(outputs))
        self.spread = nn.Parameter(torch.full((outputs, inputs), 0.5 / inputs**0.5))

    def forward(self, x):
        a, b = (torch.randn(n, device=x.device) for n in self.spread.shape)
        a, b = a.sign() * a.abs().sqrt(), b.sign() * b.abs().sqrt()
        return self.mean(x) + F.linear(x, self.spread * torch.outer(a, b), self.bias * a)


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.value = nn.Sequential(Noisy(HIDDEN, HIDDEN), nn.ReLU(), Noisy(HIDDEN, ATOMS))
        self.gain = nn.Sequential(Noisy(HIDDEN, HIDDEN), nn.ReLU(), Noisy(HIDDEN, ACTIONS * ATOMS))

    def forward(self, x):
        x = self.body(x)
        gain = self.gain(x).unflatten(1, (ACTIONS, ATOMS))
        return (self.value(x)[:, None] + gain - gain.mean(1, keepdim=True)).log_softmax(-1)


def target(atoms, probabilities, rewards, ends):
    """The distribution of returns a step later, spread over the atoms of now."""
    width = (HIGH - LOW) / (ATOMS - 1)
    values = (rewards[:, None] + GAMMA * (1 - ends[:, None]) * atoms).clamp(LOW, HIGH)
    near = (1 - (values[:, None, :] - atoms[None, :, None]).abs() / width).clamp(0)
    return (near * probabilities[:, None, :]).sum(-1)


def main():
    online, slow = Dueling().to(device), Dueling().to(device)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, eps=1.5e-4, fused=device.type == "cuda")
    atoms, replay = torch.linspace(LOW, HIGH, ATOMS, device=device), Replay()
    moves = rng.normal(0, 0.1, (ACTIONS, SIZE)).astype(np.float32)

    def play(states, actions):
        nexts = (0.97 * states + moves[actions]).astype(np.float32)
        rewards, ends = 1 - np.abs(nexts[:, :4]).sum(1), (rng.random(len(states)) < 0.02).astype(np.float32)
        replay.add(states, actions, rewards, nexts, ends)
        return np.where(ends[:, None] > 0, rng.normal(0, 1, nexts.shape), nexts).astype(np.float32)

    states = rng.normal(0, 1, (4 * BATCH, SIZE)).astype(np.float32)
    states = play(states, rng.integers(0, ACTIONS, len(states)))[:ENVS]
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            began = time.perf_counter()
        with torch.no_grad():
            outlook = (online(torch.from_numpy(states).to(device)).exp() * atoms).sum(-1)
        states = play(states, outlook.argmax(1).cpu().numpy())
        places, weights, (now, actions, rewards, nexts, ends) = replay.sample()
        rows = torch.arange(BATCH, device=device)
        with torch.no_grad():
            best = (online(nexts).exp() * atoms).sum(-1).argmax(1)
            wanted = target(atoms, slow(nexts)[rows, best].exp(), rewards, ends)
        errors = -(wanted * online(now)[rows, actions]).sum(-1)
        loss = (weights * errors).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        optimizer.step()
        replay.surprise(places, errors.detach().cpu().double().numpy())
        if "loss-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % EVERY == 0:
            slow.load_state_dict(online.state_dict())
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
