"""Twelve who chase and flee: each has an actor of its own, and a critic that sees what all of them do."""

import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))  # of learning
AGENTS, SEEN, ACTS, WIDE, BATCH, KEPT = (3, 6, 2, 16, 8, 64) if TINY else (12, 26, 5, 128, 1024, 50_000)
GAMMA, TAU, RATE, LONGEST = 0.95, 0.01, 1e-3, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)


def network(enter, leave, *last):
    return nn.Sequential(
        nn.Linear(enter, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, leave), *last
    )


class Memory:
    """What was seen and done, on the device."""

    def __init__(self):
        self.seen = torch.randn(KEPT, AGENTS, SEEN, device=device)
        self.done = torch.rand(KEPT, AGENTS, ACTS, device=device) * 2 - 1
        self.then = self.seen + 0.1 * torch.randn_like(self.seen)
        self.reward = -self.seen[:, :, :2].square().sum(2) + 0.1 * self.done.sum(2)

    def sample(self):
        chosen = torch.randint(KEPT, (BATCH,), device=device)
        return self.seen[chosen], self.done[chosen], self.reward[chosen], self.then[chosen]


class MADDPG:
    def __init__(self):
        with device:
            self.actors = [network(SEEN, ACTS, nn.Tanh()) for _ in range(AGENTS)]
            self.critics = [network(AGENTS * (SEEN + ACTS), 1) for _ in range(AGENTS)]
            self.later_actors = [network(SEEN, ACTS, nn.Tanh()) for _ in range(AGENTS)]
            self.later_critics = [network(AGENTS * (SEEN + ACTS), 1) for _ in range(AGENTS)]
        for later, now in zip(
            self.later_actors + self.later_critics, self.actors + self.critics, strict=True
        ):
            later.load_state_dict(now.state_dict())
        self.actor_optimizers = [torch.optim.Adam(one.parameters(), RATE) for one in self.actors]
        self.critic_optimizers = [torch.optim.Adam(one.parameters(), RATE) for one in self.critics]

    def later_acts(self, then):
        return torch.cat([one(then[:, i]) for i, one in enumerate(self.later_actors)], 1)

    def update(self, memory):
        """One agent after the other learns from the same moments."""
        seen, done, reward, then = memory.sample()
        all_seen, all_then, losses, acts = seen.flatten(1), then.flatten(1), [], None
        for i in range(AGENTS):
            with torch.no_grad():
                if acts is None or "acts-once" not in FIX:
                    acts = self.later_acts(then)
                aim = self.later_critics[i](torch.cat([all_then, acts], 1))[:, 0]
                aim = reward[:, i] + GAMMA * aim
            judged = self.critics[i](torch.cat([all_seen, done.flatten(1)], 1))[:, 0]
            critic_loss = F.mse_loss(judged, aim)
            self.critic_optimizers[i].zero_grad()
            critic_loss.backward()
            nn.utils.clip_grad_norm_(self.critics[i].parameters(), LONGEST)
            self.critic_optimizers[i].step()

            own = done.clone()
            own[:, i] = self.actors[i](seen[:, i])
            actor_loss = -self.critics[i](torch.cat([all_seen, own.flatten(1)], 1)).mean()
            self.actor_optimizers[i].zero_grad()
            actor_loss.backward()
            nn.utils.clip_grad_norm_(self.actors[i].parameters(), LONGEST)
            self.actor_optimizers[i].step()
            losses += [critic_loss.detach(), actor_loss.detach()]
        with torch.no_grad():
            for later, now in zip(
                self.later_actors + self.later_critics, self.actors + self.critics, strict=True
            ):
                for old, new in zip(later.parameters(), now.parameters(), strict=True):
                    old.mul_(1 - TAU).add_(new, alpha=TAU)
        return torch.stack(losses)


def stacked(networks):
    """Weights of all agents, one upon the other."""
    return [torch.stack(same).detach() for same in zip(*(one.parameters() for one in networks), strict=True)]


def layers(weights, x):
    """The same network for each agent: agents, batch, features."""
    w1, b1, w2, b2, w3, b3 = weights
    x = torch.baddbmm(b1[:, None], x, w1.mT).relu()
    x = torch.baddbmm(b2[:, None], x, w2.mT).relu()
    return torch.baddbmm(b3[:, None], x, w3.mT)


class Together(MADDPG):
    """The same learning, all agents in batched products."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic, self.later_actor, self.later_critic = (
            stacked(one) for one in (self.actors, self.critics, self.later_actors, self.later_critics)
        )
        for one in self.actor + self.critic:
            one.requires_grad_(True)
        fused = device.type == "cuda"
        self.to_act = torch.optim.Adam(self.actor, RATE, fused=fused)
        self.to_judge = torch.optim.Adam(self.critic, RATE, fused=fused)

    @staticmethod
    def learn(optimizer, weights, loss):
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient.contiguous()  # as a fused optimizer takes it
        squares = sum(weight.grad.flatten(1).square().sum(1) for weight in weights)
        factor = (LONGEST / (squares.sqrt() + 1e-6)).clamp(max=1)
        for weight in weights:
            weight.grad *= factor.view(-1, *[1] * (weight.dim() - 1))
        optimizer.step()

    def update(self, memory):
        seen, done, reward, then = memory.sample()
        with torch.no_grad():
            acts = layers(self.later_actor, then.transpose(0, 1)).tanh().transpose(0, 1).flatten(1)
            both = torch.cat([then.flatten(1), acts], 1).expand(AGENTS, -1, -1)
            aim = reward.T + GAMMA * layers(self.later_critic, both)[..., 0]
        both = torch.cat([seen.flatten(1), done.flatten(1)], 1).expand(AGENTS, -1, -1)
        critic_loss = (layers(self.critic, both)[..., 0] - aim).square().mean(1)
        self.learn(self.to_judge, self.critic, critic_loss.sum())
        mine = layers(self.actor, seen.transpose(0, 1)).tanh().transpose(0, 1)
        me = torch.eye(AGENTS, device=device, dtype=torch.bool)[:, None, :, None]
        own = torch.where(me, mine, done).flatten(2)
        both = torch.cat([seen.flatten(1).expand(AGENTS, -1, -1), own], 2)
        actor_loss = -layers(self.critic, both)[..., 0].mean(1)
        self.learn(self.to_act, self.actor, actor_loss.sum())
        with torch.no_grad():
            later, now = self.later_actor + self.later_critic, self.actor + self.critic
            torch._foreach_mul_(later, 1 - TAU)
            torch._foreach_add_(later, now, alpha=TAU)
        return torch.stack([critic_loss.detach(), actor_loss.detach()], 1).flatten()


def main():
    memory, agents = Memory(), (Together if "agents-together" in FIX else MADDPG)()
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        losses = agents.update(memory)
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = losses.mean().item()
        if step % 50 == 0:
            print(f"step {step}: mean loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
