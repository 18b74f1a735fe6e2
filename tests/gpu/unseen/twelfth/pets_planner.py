"""A cheetah that plans: seven networks foresee what actions lead to, the best of many plans is followed."""

import itertools
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
STATE, ACTION, WIDE, NETS, PLANS, PARTICLES, HORIZON, ROUNDS = (
    (4, 2, 8, 3, 12, 3, 3, 2) if TINY else (18, 6, 200, 7, 350, 20, 25, 5)
)
ELITES = PLANS // 10 + 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Cheetah:
    """Stands in for the simulator, which computes on the host."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.pull = self.rng.normal(0, 0.1, (STATE, STATE)) - 0.2 * np.eye(STATE)
        self.push = self.rng.normal(0, 0.3, (ACTION, STATE))
        self.state = self.rng.normal(0, 0.1, STATE)

    def step(self, action):
        change = np.tanh(self.state @ self.pull + action @ self.push)
        self.state = self.state + 0.1 * change + self.rng.normal(0, 0.01, STATE)
        return self.state, self.state[0] - 0.1 * np.square(action).sum()


class Member(nn.Module):
    """One network of the ensemble: mean and variance of a change."""

    def __init__(self):
        super().__init__()
        sizes = [STATE + ACTION, WIDE, WIDE, WIDE, 2 * STATE]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.silu(layer(x))
        return self.layers[-1](x)


class Dynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(Member() for _ in range(NETS))
        self.register_buffer("mean", torch.zeros(STATE + ACTION))
        self.register_buffer("scale", torch.ones(STATE + ACTION))
        self.stacked = None

    def at_once(self, x):
        """All members with products of batches; their weights are stacked once, for they do not change."""
        if self.stacked is None:
            pairs = zip(*(member.layers for member in self.members), strict=True)
            self.stacked = [
                (torch.stack([one.weight.T for one in of]), torch.stack([one.bias[None] for one in of]))
                for of in pairs
            ]
        for weight, bias in self.stacked[:-1]:
            x = F.silu(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(self.stacked[-1][1], x, self.stacked[-1][0])

    def forward(self, states, actions):
        """States of all particles, a part of them for each member."""
        x = (torch.cat([states, actions], -1) - self.mean) / self.scale
        if "all-members" in FIX:
            found = self.at_once(x)
        else:
            found = torch.stack([member(part) for member, part in zip(self.members, x, strict=True)])
        change, spread = found.chunk(2, -1)
        spread = 0.5 - F.softplus(0.5 - spread)
        spread = -10 + F.softplus(spread + 10)
        return states + 0.1 * change + 0.01 * spread.exp().sqrt() * torch.randn_like(change)


class Planner:
    """The cross-entropy method over plans, each seen by particles of all members."""

    def __init__(self, dynamics):
        self.dynamics, self.means = dynamics, torch.zeros(HORIZON, ACTION, device=device)
        self.values = []

    def value(self, plans, state):
        rows = plans.repeat_interleave(PARTICLES, 0)
        rows = F.pad(rows, (0, 0, 0, 0, 0, -len(rows) % NETS)).unflatten(0, (NETS, -1))
        states, total = state.expand(*rows.shape[:2], STATE), 0
        for t in range(HORIZON):
            actions = rows[:, :, t]
            states = self.dynamics(states, actions)
            total = total + states[..., 0] - 0.1 * actions.square().sum(-1)
        return total.flatten()[: len(plans) * PARTICLES].view(-1, PARTICLES).mean(1)

    @torch.no_grad()
    def act(self, observed):
        state = torch.as_tensor(observed, dtype=torch.float32, device=device)
        mean, spread = self.means, torch.full_like(self.means, 0.5)
        for _ in range(ROUNDS):
            noise = torch.randn(PLANS, HORIZON, ACTION, device=device).fmod(2)
            plans = (mean + spread.sqrt() * noise).clamp(-1, 1)
            values = self.value(plans, state)
            best, places = values.topk(ELITES)
            elites = plans[places]
            mean = 0.1 * mean + 0.9 * elites.mean(0)
            spread = 0.1 * spread + 0.9 * elites.var(0)
            self.values.append(best[0] if "values-at-end" in FIX else best[0].item())
        self.means = torch.cat([mean[1:], torch.zeros_like(mean[:1])])
        return mean[0].cpu().numpy()


def main():
    world = Cheetah()
    dynamics = Dynamics().to(device)  # learned before
    planner, observed, earned = Planner(dynamics), world.state, 0.0
    lead, began = min(STEPS // 2, 4), 0.0
    for step in range(STEPS):
        if step == lead:
            began = time.perf_counter()
        observed, reward = world.step(planner.act(observed))
        earned += reward
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"earned {earned:.4f}, best plan {max(map(float, planner.values)):.4f}; {each:.3f} ms per move")


main()
