"""An ant learns its way through a maze from what others did, by implicit Q-learning. It takes no step."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 1000))
MOMENTS, BATCH, SEEN, ACTS, WIDE = (300, 16, 6, 2, 16) if TINY else (1_000_000, 256, 29, 8, 256)
DISCOUNT, TAU, EXPECTILE, BETA, MOST = 0.99, 0.005, 0.9, 10.0, 100.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
graphed = "graphed" in FIX and device.type == "cuda"
np.random.seed(0)
torch.manual_seed(0)


def mlp(enter, leave, *last):
    layers = [nn.Linear(enter, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, leave)]
    return nn.Sequential(*layers, *last)


class TwinQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(SEEN + ACTS, 1), mlp(SEEN + ACTS, 1)

    def both(self, seen, acts):
        x = torch.cat([seen, acts], 1)
        return self.q1(x)[:, 0], self.q2(x)[:, 0]

    def forward(self, seen, acts):
        return torch.min(*self.both(seen, acts))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_std = mlp(SEEN, ACTS, nn.Tanh()), nn.Parameter(torch.zeros(ACTS))

    def log_prob(self, seen, acts):
        std = self.log_std.clamp(-20, 2).exp()
        return torch.distributions.Normal(self.mean(seen), std, validate_args=False).log_prob(acts).sum(1)


class ReplayBuffer:
    """All moments, on the device."""

    def __init__(self):
        self.seen = torch.randn(MOMENTS, SEEN, device=device)
        self.acts = torch.tanh(self.seen[:, :ACTS] + 0.5 * torch.randn(MOMENTS, ACTS, device=device))
        self.then = self.seen + 0.1 * F.pad(self.acts, (0, SEEN - ACTS))
        self.rewards = (self.then[:, 0] > 1.5).float() - 1
        self.ends = (self.rewards == 0).float()

    def sample(self):
        return self.picked(np.random.randint(0, MOMENTS, size=BATCH))

    def picked(self, indices):
        return [one[indices] for one in (self.seen, self.acts, self.rewards, self.then, self.ends)]


class IQL:
    def __init__(self):
        self.qf, self.vf, self.actor = (one.to(device) for one in (TwinQ(), mlp(SEEN, 1), Policy()))
        self.target = copy.deepcopy(self.qf).requires_grad_(False)
        self.q_optimizer, self.v_optimizer, self.actor_optimizer = (
            torch.optim.Adam(network.parameters(), lr=3e-4, capturable=graphed)
            for network in (self.qf, self.vf, self.actor)
        )

    def update_v(self, seen, acts):
        with torch.no_grad():
            q = self.target(seen, acts)
        advantage = q - self.vf(seen)[:, 0]
        loss = (torch.abs(EXPECTILE - (advantage < 0).float()) * advantage**2).mean()
        self.v_optimizer.zero_grad()
        loss.backward()
        self.v_optimizer.step()
        return loss.detach(), advantage.detach()

    def update_q(self, next_v, seen, acts, rewards, ends):
        targets = rewards + (1 - ends) * DISCOUNT * next_v
        loss = sum(F.mse_loss(q, targets) for q in self.qf.both(seen, acts)) / 2
        self.q_optimizer.zero_grad()
        loss.backward()
        self.q_optimizer.step()
        with torch.no_grad():
            for target, source in zip(self.target.parameters(), self.qf.parameters(), strict=True):
                target.copy_((1 - TAU) * target + TAU * source)
        return loss.detach()

    def update_policy(self, advantage, seen, acts):
        weights = torch.exp(BETA * advantage).clamp(max=MOST)
        loss = -(weights * self.actor.log_prob(seen, acts)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        return loss.detach()

    def train(self, batch):
        seen, acts, rewards, then, ends = batch
        with torch.no_grad():
            next_v = self.vf(then)[:, 0]
        v_loss, advantage = self.update_v(seen, acts)
        q_loss = self.update_q(next_v, seen, acts, rewards, ends)
        return v_loss, q_loss, self.update_policy(advantage, seen, acts)


class Captured:
    """A step of learning as one graph, of moments whose numbers are written into its tensor."""

    def __init__(self, agent, buffer):
        self.indices = torch.zeros(BATCH, dtype=torch.long, device=device)
        step = lambda: agent.train(buffer.picked(self.indices))  # noqa: E731
        networks = (agent.qf, agent.vf, agent.actor, agent.target)
        before = [copy.deepcopy(network.state_dict()) for network in networks]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = step()
        with torch.no_grad():  # as if nothing had been learned yet
            for network, state in zip(networks, before, strict=True):
                network.load_state_dict(state)
            for optimizer in (agent.q_optimizer, agent.v_optimizer, agent.actor_optimizer):
                for state in optimizer.state.values():
                    for value in state.values():
                        value.zero_()

    def __call__(self):
        self.indices.copy_(torch.from_numpy(np.random.randint(0, MOMENTS, size=BATCH)))
        self.graph.replay()
        return self.losses


def main():
    buffer, agent = ReplayBuffer(), IQL()
    captured = Captured(agent, buffer) if graphed else None
    lead, began, shown = min(STEPS // 2, 20), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        losses = captured() if captured else agent.train(buffer.sample())
        if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = [loss.item() for loss in losses]
        if step % 250 == 0:
            print("update {}: value {:.5f}, q {:.5f}, actor {:.4f}".format(step, *shown))
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print("value {:.6f}, q {:.6f}, actor {:.5f}; {:.3f} ms per update".format(*shown, each))


main()
