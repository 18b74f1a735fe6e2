"""A one-legged robot learns to hop by trust regions: it acts for a while, then takes one safe step."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution, Normal

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # iterations: acting and one update
MOMENTS, SEEN, ACTIONS, WIDE, DIRECTIONS, FITS = (40, 11, 3, 16, 3, 2) if TINY else (512, 11, 3, 64, 10, 5)
GAMMA, LAMBDA, REGION, DAMPING, EPISODE = 0.99, 0.97, 0.01, 0.1, 200
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_num_threads(1)
if "unvalidated" in FIX:
    Distribution.set_default_validate_args(False)


class Hopper:
    """Joints with springs that are pushed; one moment after the other, in numpy."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.pull = self.rng.normal(0, 0.1, (SEEN, SEEN)) - 0.8 * np.eye(SEEN)
        self.push = self.rng.normal(0, 0.5, (ACTIONS, SEEN))
        self.state, self.age = np.zeros(SEEN), 0

    def reset(self):
        self.state, self.age = 0.1 * self.rng.standard_normal(SEEN), 0
        return self.state.copy()

    def step(self, action):
        action = np.clip(action, -1, 1)
        for _ in range(4):
            force = np.tanh(self.state) @ self.pull + action @ self.push
            self.state = self.state + 0.02 * force
        self.age += 1
        reward = self.state[0] + 0.1 - 0.001 * float(np.square(action).sum())
        fallen = bool(np.abs(self.state).max() > 5)
        return self.state.copy(), reward, fallen, self.age >= EPISODE


def network(leave):
    layers = [nn.Linear(SEEN, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, leave)]
    return nn.Sequential(*layers)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_std = network(ACTIONS), nn.Parameter(torch.full((ACTIONS,), -0.5))

    def forward(self, seen):
        return Normal(self.mean(seen), self.log_std.exp())


class Agent:
    def __init__(self):
        self.policy, self.value = Policy().to(device), network(1).to(device)
        self.optimizer = torch.optim.Adam(self.value.parameters(), lr=1e-3)
        self.acting = Policy() if "act-on-cpu" in FIX else self.policy
        self.place = torch.device("cpu") if "act-on-cpu" in FIX else device
        self.rng = np.random.default_rng(1)
        self.entropy = 0.0

    def ready(self):
        if self.acting is not self.policy:
            self.acting.load_state_dict(self.policy.state_dict())

    @torch.no_grad()
    def act(self, seen):
        noise = self.rng.standard_normal(ACTIONS).astype(np.float32)
        given = torch.as_tensor(seen, dtype=torch.float32).unsqueeze(0).to(self.place)
        said = self.acting(given)
        action = said.mean + said.stddev * torch.from_numpy(noise).to(self.place)
        return action.squeeze(0).cpu().numpy()

    def flat(self, gradients):
        return torch.cat([one.reshape(-1) for one in gradients])

    def curvature(self, seen, vector):
        """How fast the policy moves away from itself, in a direction."""
        now = self.policy(seen)
        old = Normal(now.mean.detach(), now.stddev.detach())
        apart = torch.distributions.kl_divergence(old, now).sum(1).mean()
        weights = list(self.policy.parameters())
        slope = self.flat(torch.autograd.grad(apart, weights, create_graph=True))
        return self.flat(torch.autograd.grad(slope @ vector, weights)).detach() + DAMPING * vector

    def direction(self, seen, slope):
        """By conjugate gradients."""
        found, rest = torch.zeros_like(slope), slope.clone()
        way, length = rest.clone(), rest @ rest
        for _ in range(DIRECTIONS):
            bent = self.curvature(seen, way)
            alpha = length / (way @ bent)
            found, rest = found + alpha * way, rest - alpha * bent
            longer = rest @ rest
            way, length = rest + (longer / length) * way, longer
        return found

    def update(self, seen, actions, gains, returns):
        weights = list(self.policy.parameters())
        said = self.policy(seen)
        before = said.log_prob(actions).sum(1)
        old = Normal(said.mean.detach(), said.stddev.detach())
        hoped = (torch.exp(before - before.detach()) * gains).mean()
        slope = self.flat(torch.autograd.grad(hoped, weights)).detach()
        way = self.direction(seen, slope)
        length = torch.sqrt(2 * REGION / (way @ self.curvature(seen, way) + 1e-8))
        start = nn.utils.parameters_to_vector(weights).detach()
        with torch.no_grad():
            for tried in range(10):
                nn.utils.vector_to_parameters(start + 0.5**tried * length * way, weights)
                now = self.policy(seen)
                better = (torch.exp(now.log_prob(actions).sum(1) - before) * gains).mean() - hoped
                apart = torch.distributions.kl_divergence(old, now).sum(1).mean()
                if better.item() > 0 and apart.item() < 1.5 * REGION:
                    break
            else:
                nn.utils.vector_to_parameters(start, weights)
        for _ in range(FITS):
            loss = (self.value(seen)[:, 0] - returns).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if "entropy-unread" not in FIX:
            self.entropy = said.entropy().sum(1).mean().item()
        return loss.item()


def collected(agent, hopper, seen):
    """What was seen, done and earned in some moments, and what is seen then."""
    rows = []
    for _ in range(MOMENTS):
        action = agent.act(seen)
        then, reward, fallen, over = hopper.step(action)
        rows.append((seen, action, reward, then, fallen, fallen or over))
        seen = hopper.reset() if fallen or over else then
    return [np.stack(column) for column in zip(*rows, strict=True)], seen


@torch.no_grad()
def advantages(agent, seen, rewards, then, fallen, ended):
    values = agent.value(seen)[:, 0].cpu().numpy()
    after = agent.value(then)[:, 0].cpu().numpy()
    gains, last = np.zeros(MOMENTS, np.float32), 0.0
    for i in reversed(range(MOMENTS)):
        missed = rewards[i] + GAMMA * after[i] * (1 - fallen[i]) - values[i]
        last = gains[i] = missed + GAMMA * LAMBDA * (1 - ended[i]) * last
    return gains, gains + values


def main():
    hopper, agent = Hopper(), Agent()
    seen, lead, began, earned, loss = hopper.reset(), min(STEPS // 2, 3), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        agent.ready()
        (saw, actions, rewards, then, fallen, ended), seen = collected(agent, hopper, seen)
        there = [torch.tensor(part, dtype=torch.float32, device=device) for part in (saw, actions, then)]
        gains, returns = advantages(agent, there[0], rewards, there[2], fallen, ended)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        gains, returns = torch.from_numpy(gains).to(device), torch.from_numpy(returns).to(device)
        loss = agent.update(there[0], there[1], gains, returns)
        earned += (rewards.mean() - earned) / (step + 1)
        if step % 20 == 0:
            print(f"iteration {step}: {earned:.4f} a moment, value {loss:.4f}, entropy {agent.entropy:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{earned:.4f} a moment, value {loss:.4f}; {each:.3f} ms per iteration")


main()
