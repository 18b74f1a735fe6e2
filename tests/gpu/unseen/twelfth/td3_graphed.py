"""Humanoids on the device learn to stand: TD3 in large batches, all of a step in one CUDA graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 400))
WORLDS, STATE, ACTION, WIDE, SIZE, BATCH = (4, 6, 2, 16, 8, 16) if TINY else (2048, 96, 20, 1024, 128, 32_768)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
cuda = device.type == "cuda"
backend = "inductor" if cuda else "eager"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE // 2), nn.ReLU(),
        nn.Linear(WIDE // 2, WIDE // 4), nn.ReLU(), nn.Linear(WIDE // 4, outputs),
    )  # fmt: skip


class Nets(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critics = network(STATE, ACTION), nn.ModuleList()
        for _ in range(2):
            self.critics.append(network(STATE + ACTION, 1))

    def act(self, states):
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            return self.actor(states).float().tanh()

    def values(self, states, actions):
        x = torch.cat([states, actions], -1)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            return [critic(x).float()[:, 0] for critic in self.critics]


def critic_loss(nets, targets, states, actions, rewards, after, noise):
    with torch.no_grad():
        following = (targets.act(after) + noise).clamp(-1, 1)
        wanted = rewards + 0.97 * torch.minimum(*targets.values(after, following))
    first, second = nets.values(states, actions)
    return F.mse_loss(first, wanted) + F.mse_loss(second, wanted)


def actor_loss(nets, states):
    return -nets.values(states, nets.act(states))[0].mean()


class Learner:
    def __init__(self):
        with device:
            self.nets, self.targets = Nets(), Nets()
            self.state = 0.1 * torch.randn(WORLDS, STATE)
            self.pull, self.push = 0.1 * torch.randn(STATE, STATE), 0.3 * torch.randn(ACTION, STATE)
            self.memory = [
                torch.zeros(SIZE * WORLDS, STATE), torch.zeros(SIZE * WORLDS, ACTION),
                torch.zeros(SIZE * WORLDS), torch.zeros(SIZE * WORLDS, STATE),
            ]  # fmt: skip
            self.at, self.rows = torch.zeros((), dtype=torch.long), torch.arange(WORLDS)
            self.shown = torch.zeros(2)
        self.targets.load_state_dict(self.nets.state_dict())
        self.targets.requires_grad_(False)
        options = {"lr": 3e-4, "fused": True, "capturable": True} if cuda else {"lr": 3e-4}
        self.critic_optimizer = torch.optim.AdamW(self.nets.critics.parameters(), **options)
        self.actor_optimizer = torch.optim.AdamW(self.nets.actor.parameters(), **options)
        self.critic_loss = torch.compile(critic_loss, backend=backend, dynamic=False)
        self.actor_loss = torch.compile(actor_loss, backend=backend, dynamic=False)
        self.graph = None

    @torch.no_grad()
    def move(self):
        """All worlds go on by one moment, which is kept."""
        actions = (self.nets.act(self.state) + 0.2 * torch.randn(WORLDS, ACTION, device=device)).clamp(-1, 1)
        after = self.state + 0.1 * torch.tanh(self.state @ self.pull + actions @ self.push)
        rewards = 1 - after[:, 0].square() - 0.01 * actions.square().sum(1)
        places = self.at * WORLDS + self.rows
        for kept, new in zip(self.memory, (self.state, actions, rewards, after), strict=True):
            kept[places] = new
        self.state.copy_(torch.where(after[:, :1].abs() > 3, 0.1 * torch.randn_like(after), after))
        self.at.copy_((self.at + 1) % SIZE)

    def learn(self, with_actor):
        chosen = torch.randint(SIZE * WORLDS, (BATCH,), device=device)
        states, actions, rewards, after = (kept[chosen] for kept in self.memory)
        noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
        loss = self.critic_loss(self.nets, self.targets, states, actions, rewards, after, noise)
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.step()
        self.shown[0].copy_(loss.detach())
        if with_actor:
            self.nets.critics.requires_grad_(False)
            loss = self.actor_loss(self.nets, states)
            self.actor_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.actor_optimizer.step()
            self.nets.critics.requires_grad_(True)
            self.shown[1].copy_(loss.detach())
        with torch.no_grad():
            torch._foreach_lerp_(list(self.targets.parameters()), list(self.nets.parameters()), 0.01)

    def step(self):
        self.move()
        self.learn(False)
        self.learn(True)

    def capture(self):
        """Warm up on another stream, then record what all steps replay."""
        for _ in range(SIZE):
            self.move()
        if not cuda:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()


def main():
    learner = Learner()
    learner.capture()
    step = learner.graph.replay if learner.graph else learner.step
    lead, began, shown = min(STEPS // 2, 10), 0.0, [0.0, 0.0]
    for number in range(STEPS):
        if number == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        step()
        if "losses-rarely" not in FIX or number % 50 == 0 or number == STEPS - 1:
            shown = learner.shown.tolist()
        if number % 100 == 0:
            print(f"step {number}: losses {shown[0]:.4f} {shown[1]:.4f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"losses {shown[0]:.5f} {shown[1]:.5f}; {each:.3f} ms per step")


main()
