"""PPO with a memory: a sign at the beginning of a corridor says where to turn at its end."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))  # iterations of playing and learning
AGENTS, MOMENTS, PARTS, EPOCHS, SEEN, HIDDEN, LONGEST = (
    (4, 8, 2, 2, 12, 16, 5) if TINY else (32, 64, 4, 2, 40, 256, 30)
)
ACTIONS, GAMMA, LAMBDA, CLIP = 3, 0.99, 0.95, 0.2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Corridors:
    """Many corridors at once: walk on, and turn left or right at the end as the sign said."""

    def __init__(self, count, seed=0):
        self.rng, self.count = np.random.default_rng(seed), count
        self.length, self.place = np.zeros(count, int), np.zeros(count, int)
        self.sign = np.zeros(count, int)

    def reset(self, which=None):
        which = np.arange(self.count) if which is None else which
        self.length[which] = self.rng.integers(3, LONGEST + 1, len(which))
        self.sign[which] = self.rng.integers(0, 2, len(which))
        self.place[which] = 0
        return self.look()

    def look(self):
        view = np.zeros((self.count, SEEN), np.float32)
        rows, start = np.arange(self.count), self.place == 0
        view[rows[start], self.sign[start]] = 1.0
        view[rows, 2 + np.minimum(self.length - self.place, SEEN - 3)] = 1.0
        return view

    def step(self, actions):
        end = self.place >= self.length
        walked = actions == 2
        rewards = np.where(end, np.where(actions == self.sign, 1.0, -1.0) * ~walked, -0.02 * ~walked)
        self.place += walked & ~end
        done = end & ~walked
        if done.any():
            self.reset(np.flatnonzero(done))
        return self.look(), rewards.astype(np.float32), done.astype(np.float32)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(nn.Linear(SEEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.lstm = nn.LSTM(HIDDEN, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, 1)

    def states(self, seen, memory, done):
        """The memory after each moment; it is empty where an episode begins."""
        seen = self.eyes(seen).view(-1, memory[0].shape[1], HIDDEN)
        done = done.view(-1, memory[0].shape[1])
        if "whole-episodes" in FIX and len(seen) > 1:
            return self.whole(seen, memory, done), None
        found = []
        for now, ended in zip(seen, done, strict=True):
            keep = (1.0 - ended).view(1, -1, 1)
            now, memory = self.lstm(now[None], (keep * memory[0], keep * memory[1]))
            found.append(now)
        return torch.cat(found).flatten(0, 1), memory

    def whole(self, seen, memory, done):
        """Each episode is a sequence of its own, and all of them go through at once."""
        begins = done.cpu().numpy() > 0
        fresh = begins[0].copy()
        begins[0] = True
        moments, agents = (each.astype(np.int64) for each in np.nonzero(begins.T)[::-1])
        ends = np.append(moments[1:], 0)
        ends[np.append(agents[1:] != agents[:-1], True)] = len(seen)
        lengths = ends - moments
        places = np.arange(lengths.max())[:, None]
        rows = np.minimum(moments + places, len(seen) - 1)
        back = np.flatnonzero((places < lengths).T.ravel())
        index = torch.from_numpy(np.stack([rows, np.broadcast_to(agents, rows.shape)])).to(device)
        keep = torch.from_numpy(((moments == 0) & ~fresh[agents]).astype(np.float32)).to(device)[:, None]
        first = tuple((keep * one[0, torch.from_numpy(agents).to(device)])[None] for one in memory)
        found, _ = self.lstm(seen[index[0], index[1]], first)
        found = found.transpose(0, 1).flatten(0, 1)[torch.from_numpy(back).to(device)]
        return found.view(seen.shape[1], len(seen), HIDDEN).transpose(0, 1).flatten(0, 1)

    def forward(self, seen, memory, done, actions=None):
        x, memory = self.states(seen, memory, done)
        chances = Categorical(logits=self.actor(x))
        actions = chances.sample() if actions is None else actions
        return actions, chances.log_prob(actions), chances.entropy(), self.critic(x)[:, 0], memory


def play(agent, corridors, now, done, memory):
    shape = (MOMENTS, AGENTS)
    kept = {name: torch.zeros(shape, device=device) for name in ("chance", "reward", "done", "value")}
    kept["seen"] = torch.zeros(*shape, SEEN, device=device)
    kept["action"] = torch.zeros(shape, dtype=torch.long, device=device)
    for moment in range(MOMENTS):
        kept["seen"][moment], kept["done"][moment] = now, done
        with torch.no_grad():
            action, chance, _, value, memory = agent(now, memory, done)
        kept["action"][moment], kept["chance"][moment], kept["value"][moment] = action, chance, value
        seen, reward, ended = corridors.step(action.cpu().numpy())
        kept["reward"][moment] = torch.from_numpy(reward).to(device)
        now, done = torch.from_numpy(seen).to(device), torch.from_numpy(ended).to(device)
    with torch.no_grad():
        ahead = agent(now, memory, done)[3]
        gains, last = torch.zeros(shape, device=device), 0.0
        for moment in reversed(range(MOMENTS)):
            more = 1.0 - (done if moment == MOMENTS - 1 else kept["done"][moment + 1])
            value = ahead if moment == MOMENTS - 1 else kept["value"][moment + 1]
            delta = kept["reward"][moment] + GAMMA * value * more - kept["value"][moment]
            last = delta + GAMMA * LAMBDA * more * last
            gains[moment] = last
    kept["gain"], kept["return"] = gains, gains + kept["value"]
    return kept, now, done, memory


def learn(agent, optimizer, kept, memory, rng):
    figures = []
    for _ in range(EPOCHS):
        order = rng.permutation(AGENTS)
        for part in np.split(order, PARTS):
            some = torch.from_numpy(part).to(device)
            flat = {name: one[:, some].flatten(0, 1) for name, one in kept.items()}
            first = tuple(one[:, some] for one in memory)
            _, chance, entropy, value, _ = agent(flat["seen"], first, flat["done"], flat["action"])
            ratio = (chance - flat["chance"]).exp()
            gain = (flat["gain"] - flat["gain"].mean()) / (flat["gain"].std() + 1e-8)
            policy = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            loss = policy + 0.5 * F.mse_loss(value, flat["return"]) - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            figures.append(loss.detach() if "figures-once" in FIX else loss.item())
    return torch.stack(figures).mean().item() if "figures-once" in FIX else float(np.mean(figures))


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5, fused=device.type == "cuda")
corridors, rng = Corridors(AGENTS), np.random.default_rng(1)
now, done = torch.from_numpy(corridors.reset()).to(device), torch.zeros(AGENTS, device=device)
memory = tuple(torch.zeros(1, AGENTS, HIDDEN, device=device) for _ in range(2))
times, loss, reward = [], 0.0, 0.0
for iteration in range(STEPS):
    began = time.perf_counter()
    before = tuple(one.clone() for one in memory)
    kept, now, done, memory = play(agent, corridors, now, done, memory)
    loss = learn(agent, optimizer, kept, before, rng)
    reward = kept["reward"].mean().item()
    times.append(time.perf_counter() - began)
    if iteration % 10 == 0:
        print(f"iteration {iteration}: loss {loss:.4f}, reward {reward:.4f}")
timed = times[min(STEPS // 2, 2) :]
print(f"loss {loss:.5f}, reward {reward:.4f}; {1e3 * sum(timed) / len(timed):.3f} ms per iteration")
