"""SAC on a pendulum: one environment, one update a step, a replay memory of transitions in a list."""

import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
UPDATES = int(os.environ.get("STEPS", 6 if TINY else 500))
BATCH, HIDDEN, START = (16, 32, 64) if TINY else (256, 256, 5000)
GAMMA, TAU, LR = 0.99, 0.005, 3e-4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Pendulum:
    """The swing-up task with three observations and one torque."""

    def reset(self):
        self.angle, self.speed, self.time = np.random.uniform(-np.pi, np.pi), np.random.uniform(-1, 1), 0
        return self.observe()

    def observe(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed], np.float32)

    def step(self, action):
        torque = float(np.clip(2 * action[0], -2, 2))
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = float(np.clip(self.speed + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8))
        self.angle += self.speed * 0.05
        self.time += 1
        return self.observe(), -cost, self.time >= 200


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity, self.buffer, self.position = capacity, [], 0
        self.arrays = [np.zeros((capacity, n), np.float32) for n in (3, 1, 1, 3, 1)]

    def push(self, *transition):
        if "array-buffer" in FIX:
            for array, value in zip(self.arrays, transition, strict=True):
                array[self.position] = value
        elif len(self.buffer) < self.capacity:
            self.buffer.append(transition)
        else:
            self.buffer[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        if "array-buffer" in FIX:
            chosen = np.random.randint(0, self.position, size)
            return [array[chosen] for array in self.arrays]
        batch = random.sample(self.buffer, size)
        state, action, reward, following, mask = map(np.stack, zip(*batch, strict=True))
        return state, action, reward[:, None], following, mask[:, None]


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
    )


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(4, 1), mlp(4, 1)

    def forward(self, state, action):
        x = torch.cat([state, action], 1)
        return self.q1(x), self.q2(x)


class Agent:
    def __init__(self):
        self.policy, self.critic, self.target = mlp(3, 2).to(device), Critic().to(device), Critic().to(device)
        self.target.load_state_dict(self.critic.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        capturable = "graph" in FIX and device.type == "cuda"
        self.policy_optim = torch.optim.Adam(self.policy.parameters(), LR, capturable=capturable)
        self.critic_optim = torch.optim.Adam(self.critic.parameters(), LR, capturable=capturable)
        self.alpha_optim = torch.optim.Adam([self.log_alpha], LR, capturable=capturable)
        self.captured = None

    def sample_action(self, state):
        mean, log_std = self.policy(state).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
        x = normal.rsample()
        action = torch.tanh(x)
        log_prob = normal.log_prob(x) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)

    @torch.no_grad()
    def act(self, state):
        return self.sample_action(torch.FloatTensor(state).to(device).unsqueeze(0))[0].cpu().numpy()[0]

    def losses(self, state, action, reward, following, mask):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.sample_action(following)
            target = torch.min(*self.target(following, next_action)) - alpha * next_log_prob
            target = reward + mask * GAMMA * target
        q1, q2 = self.critic(state, action)
        q1_loss, q2_loss = F.mse_loss(q1, target), F.mse_loss(q2, target)
        self.critic_optim.zero_grad()
        (q1_loss + q2_loss).backward()
        self.critic_optim.step()

        new_action, log_prob = self.sample_action(state)
        policy_loss = (alpha * log_prob - torch.min(*self.critic(state, new_action))).mean()
        self.policy_optim.zero_grad()
        policy_loss.backward()
        self.policy_optim.step()

        alpha_loss = -(self.log_alpha * (log_prob - 1.0).detach()).mean()
        self.alpha_optim.zero_grad()
        alpha_loss.backward()
        self.alpha_optim.step()
        for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            old.data.copy_(old.data * (1 - TAU) + new.data * TAU)
        return q1_loss, q2_loss, policy_loss, alpha_loss, alpha

    def replayed(self, batch):
        """Capture an update once, after three on a stream of its own; then copy batches in and replay it."""
        if self.captured is None:
            self.inputs, self.captured = batch, torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.losses(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self.captured):
                self.outputs = self.losses(*self.inputs)
        for old, new in zip(self.inputs, batch, strict=True):
            old.copy_(new)
        self.captured.replay()
        return [loss.item() for loss in self.outputs]

    def update(self, memory):
        batch = [torch.FloatTensor(part).to(device) for part in memory.sample(BATCH)]
        if "graph" in FIX and device.type == "cuda":
            return self.replayed(batch)
        return [loss.item() for loss in self.losses(*batch)]


env, agent, memory = Pendulum(), Agent(), ReplayMemory(100_000)
state, warm = env.reset(), min(20, UPDATES // 3)
rewards, start = [], 0.0
for step in range(START + UPDATES):
    if step == START + warm:
        start = time.time()
    action = np.random.uniform(-1, 1, 1).astype(np.float32) if step < START else agent.act(state)
    if step >= START:
        losses = agent.update(memory)
        if (step - START) % 100 == 0:
            print(
                f"update {step - START}: critic {losses[0]:.3f} policy {losses[2]:.3f} alpha {losses[4]:.3f}"
            )
    following, reward, done = env.step(action)
    memory.push(state, action, np.float32(reward), following, np.float32(not done))
    rewards.append(reward)
    state = env.reset() if done else following
spent = time.time() - start
print(f"critic {losses[0]:.3f}, reward {np.mean(rewards[-200:]):.2f}")
print(f"{1e3 * spent / (UPDATES - warm):.4f} ms per step")
