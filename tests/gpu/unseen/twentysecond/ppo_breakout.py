"""PPO learns to catch balls from the pixels of thirty-two games."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))  # iterations
GAMES, MOMENTS, PART, EPOCHS, WIDE = (3, 4, 6, 2, 16) if TINY else (32, 32, 256, 3, 512)
FRAMES, SIZE, ACTS, GAMMA, LAMBDA, CLIP = 4, 84, 3, 0.99, 0.95, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Games:
    """A ball falls, a bat below moves to the left, to the right, or stays; the last four frames are seen."""

    def __init__(self):
        self.x, self.y = rng.integers(SIZE, size=GAMES), rng.integers(SIZE // 2, size=GAMES)
        self.drift, self.bat = rng.integers(-2, 3, size=GAMES), np.full(GAMES, SIZE // 2)
        self.frames = np.zeros((GAMES, FRAMES, SIZE, SIZE), np.float32)
        self.draw()

    def draw(self):
        self.frames[:, :-1] = self.frames[:, 1:]
        frame = np.zeros((GAMES, SIZE, SIZE), np.uint8)
        for game in range(GAMES):
            frame[game, self.y[game] : self.y[game] + 3, self.x[game] : self.x[game] + 3] = 255
            frame[game, -3:, max(0, self.bat[game] - 6) : self.bat[game] + 6] = 160
        self.frames[:, -1] = frame / 255.0

    def step(self, acts):
        self.bat = np.clip(self.bat + 3 * (acts - 1), 0, SIZE - 1)
        self.x, self.y = (self.x + self.drift) % SIZE, self.y + 3
        ends = self.y >= SIZE - 4
        rewards = np.where(ends, np.where(np.abs(self.x - self.bat) < 8, 1.0, -1.0), 0.0)
        self.y[ends] = 0
        self.x[ends], self.drift[ends] = rng.integers(SIZE, size=ends.sum()), rng.integers(-2, 3, ends.sum())
        self.draw()
        return self.frames, rewards.astype(np.float32), ends.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(FRAMES, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, WIDE), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(WIDE, ACTS), nn.Linear(WIDE, 1)

    def forward(self, seen):
        x = self.body(seen)
        return self.actor(x).log_softmax(1), self.critic(x)[:, 0]


class RolloutBuffer:
    """All that happened in the last moments of all games."""

    def __init__(self):
        self.seen = np.zeros((MOMENTS, GAMES, FRAMES, SIZE, SIZE), np.float32)
        self.acts = np.zeros((MOMENTS, GAMES), np.int64)
        self.chances, self.values, self.rewards, self.ends, self.gains, self.returns = np.zeros(
            (6, MOMENTS, GAMES), np.float32
        )
        if "buffer-on-device" in FIX:
            self.seen = torch.zeros(self.seen.shape, device=device)

    def weigh(self, last):
        """How much better each act was than foreseen."""
        gain = np.zeros(GAMES, np.float32)
        for t in reversed(range(MOMENTS)):
            after = last if t == MOMENTS - 1 else self.values[t + 1]
            left = GAMMA * (1 - self.ends[t])
            gain = self.rewards[t] + left * after - self.values[t] + left * LAMBDA * gain
            self.gains[t] = gain
        self.returns[:] = self.gains + self.values

    def parts(self):
        order = rng.permutation(MOMENTS * GAMES)
        whole = (self.acts, self.chances, self.gains, self.returns)
        seen, others = self.seen.reshape(-1, FRAMES, SIZE, SIZE), [one.reshape(-1) for one in whole]
        for first in range(0, len(order), PART):
            picked = order[first : first + PART]
            if "buffer-on-device" in FIX:
                frames = seen[torch.from_numpy(picked).to(device)]
            else:
                frames = self.to_torch(seen[picked])
            yield frames, *(self.to_torch(one[picked]) for one in others)

    @staticmethod
    def to_torch(array):
        return torch.tensor(array, device=device)


class PPO:
    def __init__(self):
        self.games, self.buffer = Games(), RolloutBuffer()
        self.model = ActorCritic().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2.5e-4, eps=1e-5)
        self.losses = (0.0, 0.0, 0.0)

    @torch.no_grad()
    def collect(self):
        buffer, frames = self.buffer, self.games.frames
        for t in range(MOMENTS):
            seen = torch.from_numpy(frames).to(device)
            chances, values = self.model(seen)
            acts = torch.multinomial(chances.exp(), 1)
            buffer.seen[t] = seen if "buffer-on-device" in FIX else frames
            buffer.acts[t] = acts[:, 0].cpu().numpy()
            buffer.chances[t] = chances.gather(1, acts)[:, 0].cpu().numpy()
            buffer.values[t] = values.cpu().numpy()
            frames, buffer.rewards[t], buffer.ends[t] = self.games.step(buffer.acts[t])
        buffer.weigh(self.model(torch.from_numpy(frames).to(device))[1].cpu().numpy())

    def learn(self, read):
        for _ in range(EPOCHS):
            for seen, acts, before, gains, returns in self.buffer.parts():
                chances, values = self.model(seen)
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
                ratio = (chances.gather(1, acts[:, None])[:, 0] - before).exp()
                actor = -torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
                critic = F.mse_loss(values, returns)
                entropy = -(chances.exp() * chances).sum(1).mean()
                self.optimizer.zero_grad()
                (actor + 0.5 * critic - 0.01 * entropy).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                if read:
                    self.losses = (actor.item(), critic.item(), entropy.item())

    def train(self):
        lead, began = min(STEPS // 2, 4), 0.0
        for iteration in range(STEPS):
            if iteration == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            self.collect()
            self.learn("losses-rarely" not in FIX or iteration % 10 == 0 or iteration == STEPS - 1)
            if iteration % 10 == 0:
                print(f"iteration {iteration}: caught {self.buffer.rewards.sum():.0f}, losses {self.losses}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        actor, critic, entropy = self.losses
        print(f"losses {actor:.5f}, {critic:.5f}, entropy {entropy:.5f}; {each:.3f} ms per iteration")


PPO().train()
