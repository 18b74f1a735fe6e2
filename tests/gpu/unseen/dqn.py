"""DQN on frames: replay buffer, epsilon-greedy acting, an update every fourth frame, a target net."""

import os
import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
FRAMES = int(os.environ.get("STEPS", 60 if TINY else 8000))
BATCH, CAPACITY, LEARN_START, GAMMA = 4 if TINY else 64, 20_000, 20 if TINY else 1000, 0.99
device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class QNet(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


class Game:
    """Stacks of four frames; what an emulator would draw."""

    def __init__(self):
        self.bank = np.random.randint(0, 255, (512, 84, 84), dtype=np.uint8)
        self.at = 0

    def observe(self):
        return np.stack([self.bank[(self.at + k) % 512] for k in range(4)])

    def step(self, action):
        self.at += 1
        return self.observe(), float(action == self.at % 6), self.at % 300 == 0


class ReplayBuffer:
    def __init__(self):
        self.memory = deque(maxlen=CAPACITY)

    def push(self, state, action, reward, following, done):
        self.memory.append((state, action, reward, following, done))

    def sample(self, count):
        states, actions, rewards, following, dones = zip(*random.sample(self.memory, count), strict=True)
        if "bytes" in FIX:
            states, following = (
                torch.from_numpy(np.array(s)).to(device).float() for s in (states, following)
            )
        else:
            states = torch.FloatTensor(np.array(states)).to(device)
            following = torch.FloatTensor(np.array(following)).to(device)
        return (
            states / 255,
            torch.LongTensor(actions).to(device),
            torch.FloatTensor(rewards).to(device),
            following / 255,
            torch.FloatTensor(dones).to(device),
        )


class DeviceBuffer:
    def __init__(self):
        self.frames = torch.zeros(2, CAPACITY, 4, 84, 84, dtype=torch.uint8, device=device)
        self.rest = torch.zeros(CAPACITY, 3, device=device)
        self.count = 0

    def push(self, state, action, reward, following, done):
        at = self.count % CAPACITY
        self.frames[:, at] = torch.from_numpy(np.stack([state, following])).to(device)
        self.rest[at] = torch.tensor([action, reward, done], dtype=torch.float32).to(device)
        self.count += 1

    def sample(self, count):
        at = torch.randint(0, min(self.count, CAPACITY), (count,), device=device)
        actions, rewards, dones = self.rest[at].unbind(1)
        return self.frames[0, at] / 255, actions.long(), rewards, self.frames[1, at] / 255, dones


policy, target = QNet(6).to(device), QNet(6).to(device)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
buffer = DeviceBuffer() if "buffer-on-device" in FIX else ReplayBuffer()
game = Game()
state, losses, clock = game.observe(), [], None
for frame in range(FRAMES):
    if frame == LEARN_START + (FRAMES - LEARN_START) // 4:
        clock = (frame, time.perf_counter())
    epsilon = max(0.05, 1 - frame / 2000)
    if random.random() < epsilon:
        action = random.randrange(6)
    else:
        with torch.no_grad():
            action = policy(torch.FloatTensor(state).unsqueeze(0).to(device) / 255).argmax(1).item()
    following, reward, done = game.step(action)
    buffer.push(state, action, reward, following, done)
    state = game.observe() if done else following

    if frame >= LEARN_START and frame % 4 == 0:
        states, actions, rewards, nexts, dones = buffer.sample(BATCH)
        q = policy(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        if "no-grad" in FIX:
            with torch.no_grad():
                best = target(nexts).max(1)[0]
        else:
            best = target(nexts).max(1)[0].detach()
        loss = F.smooth_l1_loss(q, rewards + GAMMA * best * (1 - dones))
        optimizer.zero_grad()
        loss.backward()
        for p in policy.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        losses.append(loss.item())
    if frame % 1000 == 0:
        target.load_state_dict(policy.state_dict())
        print(f"frame {frame} loss {np.mean(losses[-100:]) if losses else 0:.4f} epsilon {epsilon:.2f}")

took = (time.perf_counter() - clock[1]) / (FRAMES - clock[0])
print(f"{took * 4e3:.3f} ms per update (4 frames), {1 / took:.0f} frames/s")
