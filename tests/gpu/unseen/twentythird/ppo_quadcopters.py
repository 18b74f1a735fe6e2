"""Thousands of quadcopters learn to hover at a place, all on one device: proximal policy optimization."""

import os
import time
from collections import deque

import torch
from torch import nn
from torch.distributions import Normal

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 90))  # iterations
COPTERS, MOMENTS, EPOCHS, PARTS, LONGEST, WIDE = (
    (16, 6, 2, 2, 12, (16, 16)) if TINY else (2048, 24, 5, 4, 400, (256, 128))
)
SEES, DOES, GAMMA, LAMBDA, CLIP, PACE = 12, 4, 0.99, 0.95, 0.2, 0.02
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
Normal.set_default_validate_args(False)


class Copters:
    """Where each is, how fast, how it leans and turns; those that are lost or old begin anew."""

    def __init__(self):
        self.state = self.begin()
        self.age = torch.randint(LONGEST, (COPTERS,), device=device)
        self.thrust = torch.tensor([9.81, 6.0, 6.0, 3.0], device=device)

    @staticmethod
    def begin():
        return torch.randn(COPTERS, SEES, device=device) * 0.1

    def step(self, action):
        place, speed, lean, turn = self.state.split(3, 1)
        push = action.clamp(-1, 1) * self.thrust
        lift = 9.81 + push[:, :1]
        up = torch.stack([lean[:, 1].sin(), -lean[:, 0].sin(), lean[:, 0].cos() * lean[:, 1].cos()], 1)
        fall = torch.zeros_like(up)
        fall[:, 2] = -9.81
        speed = speed + PACE * (up * lift + fall - 0.1 * speed)
        turn = turn + PACE * (push[:, 1:] - 0.5 * turn)
        place, lean = place + PACE * speed, lean + PACE * turn
        far = place.norm(dim=1)
        reward = 1 / (1 + far**2) - 0.01 * turn.norm(dim=1) - 0.01 * action.square().sum(1)
        self.age = self.age + 1
        ended = (far > 2.5) | (lean[:, :2].abs().amax(1) > 1.5) | (self.age >= LONGEST)
        state = torch.cat([place, speed, lean, turn], 1)
        self.state = torch.where(ended[:, None], self.begin(), state)
        self.age = torch.where(ended, 0, self.age)
        return self.state, reward, ended


def layers(leave):
    enter, parts = SEES, []
    for wide in WIDE:
        parts += [nn.Linear(enter, wide), nn.ELU()]
        enter = wide
    return nn.Sequential(*parts, nn.Linear(enter, leave))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = layers(DOES), layers(1)
        self.log_std = nn.Parameter(torch.full((DOES,), -0.5))

    def forward(self, seen):
        return Normal(self.actor(seen), self.log_std.exp()), self.critic(seen).squeeze(1)


class Log:
    """What each flight that ended has brought, and how long it was: the last hundred of them."""

    def __init__(self):
        self.running, self.spans = torch.zeros(2, COPTERS, device=device)
        self.returns, self.lengths = deque(maxlen=100), deque(maxlen=100)

    def add(self, reward, ended):
        self.running += reward
        self.spans += 1
        which = ended.nonzero().flatten()
        if "returns-together" in FIX:
            returns, lengths = torch.stack([self.running[which], self.spans[which]]).tolist()
            self.returns.extend(returns)
            self.lengths.extend(lengths)
        else:
            for i in which:
                self.returns.append(self.running[i].item())
                self.lengths.append(self.spans[i].item())
        self.running[which] = 0
        self.spans[which] = 0

    def mean(self):
        return sum(self.returns) / max(len(self.returns), 1)


@torch.no_grad()
def fly(copters, model, log):
    """A piece of the flight of all copters: what was seen, done and said, and advantages of it."""
    seen, rows = copters.state, []
    for _ in range(MOMENTS):
        policy, value = model(seen)
        action = policy.sample()
        chance = policy.log_prob(action).sum(1)
        after, reward, ended = copters.step(action)
        log.add(reward, ended)
        rows.append((seen, action, chance, value, reward, 1 - ended.float()))
        seen = after
    seen, actions, chances, values, rewards, goes_on = map(torch.stack, zip(*rows, strict=True))
    following, advantage = model(copters.state)[1], 0.0
    advantages = torch.empty_like(values)
    for t in reversed(range(MOMENTS)):
        delta = rewards[t] + GAMMA * goes_on[t] * following - values[t]
        advantage = delta + GAMMA * LAMBDA * goes_on[t] * advantage
        advantages[t], following = advantage, values[t]
    returns = advantages + values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return [one.flatten(0, 1) for one in (seen, actions, chances, advantages, returns)]


def learn(model, optimizer, flown, read):
    shown = (0.0, 0.0)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(flown[0]), device=device).chunk(PARTS):
            seen, actions, chances, advantages, returns = (one[part] for one in flown)
            policy, value = model(seen)
            ratio = (policy.log_prob(actions).sum(1) - chances).exp()
            gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
            error = (value - returns).square().mean()
            loss = -gain + error - 0.005 * policy.entropy().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if read:
                shown = (gain.item(), error.item())
    return shown


def main():
    copters, log = Copters(), Log()
    with device:
        model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 5), 0.0, (0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        flown = fly(copters, model, log)
        read = "losses-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1
        shown = learn(model, optimizer, flown, read)
        if step % 10 == 0:
            print(f"iteration {step}: return {log.mean():.3f}, error {shown[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"return {log.mean():.4f}, gain {shown[0]:.5f}, error {shown[1]:.5f}; {each:.3f} ms per iteration")


main()
