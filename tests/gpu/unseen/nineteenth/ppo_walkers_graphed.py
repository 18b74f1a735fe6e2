"""Four thousand walkers learn at once: what they do as one graph, and what is learned from it as another."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 150))  # iterations
WALKERS, MOMENTS, SEEN, ACTS, WIDTHS, PARTS, EPOCHS = (
    (8, 4, 6, 2, (16, 8), 2, 2) if TINY else (4096, 24, 48, 12, (512, 256, 128), 4, 5)
)
GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 3e-4
PART = WALKERS * MOMENTS // PARTS
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
graphed = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def mlp(leave):
    layers, enter = [], SEEN
    for wide in WIDTHS:
        layers += [nn.Linear(enter, wide), nn.ELU()]
        enter = wide
    return nn.Sequential(*layers, nn.Linear(enter, leave))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic, self.log_std = mlp(ACTS), mlp(1), nn.Parameter(torch.full((ACTS,), -0.5))

    def forward(self, seen):
        return self.actor(seen), self.critic(seen)[..., 0]


def log_chance(mean, log_std, acts):
    return (-0.5 * ((acts - mean) / log_std.exp()).square() - log_std - 0.919).sum(-1)


def live(model, state, noise, pull, push):
    """What each walker does, and what becomes of it: springs that are pushed."""
    mean, value = model(state)
    acts = mean + model.log_std.exp() * noise
    then = state + 0.05 * (torch.tanh(state @ pull) + acts.clamp(-1, 1) @ push)
    reward = 1 - 0.1 * then.square().mean(-1) - 0.01 * acts.square().mean(-1)
    ends = (then.abs().amax(-1) > 6).float()
    return acts, value, log_chance(mean, model.log_std, acts), reward, ends, then * (1 - ends[:, None])


def loss_of(model, seen, acts, before, gains, returns):
    mean, value = model(seen)
    ratio = (log_chance(mean, model.log_std, acts) - before).exp()
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    surrogate = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
    return 0.5 * (value - returns).square().mean() - surrogate - 0.005 * model.log_std.sum()


if graphed:
    live, loss_of = (torch.compile(one, dynamic=False) for one in (live, loss_of))


class PPO:
    def __init__(self):
        with device:
            self.model = ActorCritic()
            self.pull = torch.randn(SEEN, SEEN) / SEEN**0.5 - torch.eye(SEEN)
            self.push = torch.randn(ACTS, SEEN) / ACTS**0.5
            self.state = torch.randn(WALKERS, SEEN)
            self.seen = torch.zeros(MOMENTS, WALKERS, SEEN)
            self.acts = torch.zeros(MOMENTS, WALKERS, ACTS)
            self.chances, self.values, self.rewards, self.ends, self.gains = torch.zeros(5, MOMENTS, WALKERS)
            self.chosen = torch.zeros(PART, dtype=torch.long)
            self.loss = torch.zeros(())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE, fused=graphed, capturable=graphed)

    @torch.no_grad()
    def collect(self):
        """All moments of all walkers, then how much better each was than foreseen."""
        for t in range(MOMENTS):
            self.seen[t] = self.state
            noise = torch.randn(WALKERS, ACTS, device=device)
            acts, value, chance, reward, ends, then = live(
                self.model, self.state, noise, self.pull, self.push
            )
            self.acts[t], self.values[t], self.chances[t] = acts, value, chance
            self.rewards[t], self.ends[t] = reward, ends
            self.state.copy_(then)
        gain, next_value = torch.zeros_like(self.gains[0]), self.model.critic(self.state)[:, 0]
        left = GAMMA * (1 - self.ends)
        off = self.rewards + left * torch.cat([self.values[1:], next_value[None]]) - self.values
        for t in reversed(range(MOMENTS)):
            gain = torch.addcmul(off[t], left[t], gain, value=LAMBDA)
            self.gains[t] = gain

    def learn(self):
        """From a part of them."""
        picked = (one.flatten(0, 1)[self.chosen] for one in (self.seen, self.acts, self.chances, self.gains))
        seen, acts, before, gains = picked
        returns = gains + self.values.flatten()[self.chosen]
        loss = loss_of(self.model, seen, acts, before, gains, returns)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def capture(self, function):
        if not graphed:
            return function
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    def train(self):
        collect, learn = self.capture(self.collect), self.capture(self.learn)
        lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
        for iteration in range(STEPS):
            if iteration == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            collect()
            for _ in range(EPOCHS):
                for part in torch.randperm(WALKERS * MOMENTS, device=device).split(PART):
                    self.chosen.copy_(part)
                    learn()
            if "reward-rarely" not in FIX or iteration % 20 == 0 or iteration == STEPS - 1:
                shown = self.rewards.mean().item()
            if iteration % 50 == 0:
                print(f"iteration {iteration}: reward {shown:.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        print(f"reward {shown:.5f}, loss {self.loss.item():.5f}; {each:.3f} ms per iteration")


PPO().train()
