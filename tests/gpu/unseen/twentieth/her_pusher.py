"""An arm learns to push things where they are wanted: DDPG, and goals that are made of what was achieved."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 160))  # updates
MOMENTS, ARMS, CYCLE, FULL, BATCH, HIDDEN = (5, 2, 3, 6, 8, 16) if TINY else (50, 4, 40, 400, 512, 256)
SEEN, GOAL, ACTION, HINDSIGHT = 25, 3, 4, 0.8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def reward(achieved, goal):
    return -(np.linalg.norm(achieved - goal, axis=-1) > 0.05).astype(np.float32)


class Pushing:
    """Some arms at once: what they hold moves as they do, and drags what they see along."""

    def __init__(self, rng):
        self.rng = rng
        self.drag = rng.normal(0, 0.3, (GOAL, SEEN)).astype(np.float32)

    def reset(self):
        self.at = self.rng.normal(0, 0.1, (ARMS, GOAL)).astype(np.float32)
        self.goal = self.rng.normal(0, 0.15, (ARMS, GOAL)).astype(np.float32)
        return self.seen()

    def seen(self):
        return np.tanh(self.at @ self.drag), self.at.copy(), self.goal.copy()

    def step(self, action):
        self.at = 0.99 * self.at + 0.03 * action[:, :GOAL]
        return self.seen()


class Episodes:
    """What was seen and done in the last episodes."""

    def __init__(self, rng):
        self.rng, self.kept = rng, []
        self.arrays = {
            "seen": np.zeros((FULL, MOMENTS + 1, SEEN), np.float32),
            "achieved": np.zeros((FULL, MOMENTS + 1, GOAL), np.float32),
            "goal": np.zeros((FULL, MOMENTS, GOAL), np.float32),
            "action": np.zeros((FULL, MOMENTS, ACTION), np.float32),
        }
        self.added = 0

    def add(self, episode):
        place = self.added % FULL
        if place == len(self.kept):
            self.kept.append(episode)
        else:
            self.kept[place] = episode
        for name, array in self.arrays.items():
            array[place] = episode[name]
        self.added += 1

    def sample(self):
        which = self.rng.integers(len(self.kept), size=BATCH)
        moments = self.rng.integers(MOMENTS, size=BATCH)
        later = moments + 1 + (self.rng.random(BATCH) * (MOMENTS - moments)).astype(int)
        hindsight = self.rng.random(BATCH) < HINDSIGHT
        if "arrays" in FIX:
            have = self.arrays
            goal = np.where(hindsight[:, None], have["achieved"][which, later], have["goal"][which, moments])
            return {
                "seen": have["seen"][which, moments],
                "action": have["action"][which, moments],
                "next": have["seen"][which, moments + 1],
                "goal": goal,
                "reward": reward(have["achieved"][which, moments + 1], goal),
            }
        transitions = []
        for i in range(BATCH):
            episode, t = self.kept[which[i]], moments[i]
            one = {name: episode[name][t].copy() for name in ("seen", "action", "goal")}
            one["next"] = episode["seen"][t + 1].copy()
            if hindsight[i]:
                one["goal"] = episode["achieved"][later[i]].copy()
            one["reward"] = reward(episode["achieved"][t + 1], one["goal"])
            transitions.append(one)
        return {name: np.stack([one[name] for one in transitions]) for name in transitions[0]}


def network(enter, leave, last):
    layers = [nn.Linear(enter, HIDDEN), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, leave), last)


class DDPG:
    def __init__(self):
        with device:
            self.actor = network(SEEN + GOAL, ACTION, nn.Tanh())
            self.critic = network(SEEN + GOAL + ACTION, 1, nn.Identity())
        self.nets = (self.actor, self.critic)
        self.targets = [copy.deepcopy(net).requires_grad_(False) for net in self.nets]
        fused = device.type == "cuda"
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused) for net in self.nets]

    @torch.no_grad()
    def act(self, seen, goal):
        return self.actor(torch.from_numpy(np.concatenate([seen, goal], 1)).to(device)).cpu().numpy()

    def update(self, batch):
        batch = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
        now, then = (torch.cat([batch[name], batch["goal"]], 1) for name in ("seen", "next"))
        with torch.no_grad():
            after = self.targets[1](torch.cat([then, self.targets[0](then)], 1))[:, 0]
            aim = (batch["reward"] + 0.98 * after).clamp(-50, 0)
        off = F.mse_loss(self.critic(torch.cat([now, batch["action"]], 1))[:, 0], aim)
        self.optimizers[1].zero_grad()
        off.backward()
        self.optimizers[1].step()
        chosen = self.actor(now)
        loss = chosen.square().mean() - self.critic(torch.cat([now, chosen], 1)).mean()
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        with torch.no_grad():
            for net, target in zip(self.nets, self.targets, strict=True):
                torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), 0.05)
        return off.detach()


def rollout(env, episodes, act, rng):
    """An episode of each arm."""
    seen, achieved, goal = env.reset()
    steps = {"seen": [seen], "achieved": [achieved], "goal": [], "action": []}
    for _ in range(MOMENTS):
        action = np.clip(act(seen, goal) + 0.2 * rng.normal(size=(ARMS, ACTION)), -1, 1).astype(np.float32)
        seen, achieved, _ = env.step(action)
        for name, value in (("seen", seen), ("achieved", achieved), ("goal", goal), ("action", action)):
            steps[name].append(value)
    whole = {name: np.stack(values, 1) for name, values in steps.items()}
    for i in range(ARMS):
        episodes.add({name: values[i] for name, values in whole.items()})


def main():
    rng = np.random.default_rng(0)
    env, episodes, agent = Pushing(rng), Episodes(rng), DDPG()
    for _ in range(max(1, FULL // ARMS // 4)):
        rollout(env, episodes, lambda seen, goal: 0.0, rng)
    lead, began, shown = min(STEPS // 2, CYCLE), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % CYCLE == 0:
            rollout(env, episodes, agent.act, rng)
        off = agent.update(episodes.sample())
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = off.item()
        if step % CYCLE == 0:
            print(f"update {step}: off by {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"off by {shown:.6f}; {each:.3f} ms per update")


main()
