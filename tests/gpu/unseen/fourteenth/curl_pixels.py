"""A robot that sees: soft actor-critic from pictures, which two crops of each have to agree on."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # updates
KEPT, BATCH, SIDE, CROP, CHANNELS, FILTERS, FEATURES, HIDDEN, ACTIONS = (
    (20, 4, 20, 16, 9, 4, 8, 16, 2) if TINY else (5000, 256, 100, 84, 9, 32, 50, 1024, 6)
)
GAMMA, TAU, ALPHA = 0.99, 0.01, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True


class Memory:
    """What was seen, as bytes: each moment is followed by the next one."""

    def __init__(self, rng):
        self.rng = rng
        self.frames = np.empty((KEPT, CHANNELS, SIDE, SIDE), np.uint8)
        for some in np.array_split(self.frames, 10):
            some[:] = rng.integers(0, 256, (len(some), 1, SIDE, 1), dtype=np.uint8)
            some[:, :, ::3] += rng.integers(0, 99, (len(some), CHANNELS, 1, SIDE), dtype=np.uint8)
        self.actions = rng.uniform(-1, 1, (KEPT, ACTIONS)).astype(np.float32)
        self.rewards = rng.uniform(0, 1, (KEPT, 1)).astype(np.float32)
        if "crops-on-device" in FIX:
            there = torch.from_numpy(self.frames).to(device)
            self.windows = there.unfold(2, CROP, 1).unfold(3, CROP, 1)

    def crops(self, chosen):
        """A piece of each picture, somewhere in it."""
        top = self.rng.integers(0, SIDE - CROP + 1, len(chosen))
        left = self.rng.integers(0, SIDE - CROP + 1, len(chosen))
        if "crops-on-device" in FIX:
            places = torch.from_numpy(np.stack([chosen, top, left])).to(device)
            return self.windows[places[0], :, places[1], places[2]].float()
        pictures = self.frames[chosen]
        if "crops-by-windows" in FIX:
            windows = np.lib.stride_tricks.sliding_window_view(pictures, (CROP, CROP), axis=(2, 3))
            cropped = windows[np.arange(len(chosen)), :, top, left]
        else:
            cropped = np.empty((len(chosen), CHANNELS, CROP, CROP), pictures.dtype)
            for i, (picture, y, x) in enumerate(zip(pictures, top, left, strict=True)):
                cropped[i] = picture[:, y : y + CROP, x : x + CROP]
        return torch.as_tensor(cropped, device=device).float()

    def sample(self):
        chosen = self.rng.integers(0, KEPT - 1, BATCH)
        seen, then, other = self.crops(chosen), self.crops(chosen + 1), self.crops(chosen)
        actions = torch.as_tensor(self.actions[chosen], device=device)
        return seen, actions, torch.as_tensor(self.rewards[chosen], device=device), then, other


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(CHANNELS if i == 0 else FILTERS, FILTERS, 3, 2 if i == 0 else 1) for i in range(4)
        )
        side = (CROP - 3) // 2 + 1 - 6
        self.out, self.norm = nn.Linear(FILTERS * side**2, FEATURES), nn.LayerNorm(FEATURES)

    def forward(self, x, detach=False):
        x = x / 255.0
        for conv in self.convs:
            x = F.relu(conv(x))
        x = x.flatten(1)
        return self.norm(self.out(x.detach() if detach else x)).tanh()


def mlp(enter, leave):
    return nn.Sequential(
        nn.Linear(enter, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, leave)
    )


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.q1, self.q2 = mlp(FEATURES + ACTIONS, 1), mlp(FEATURES + ACTIONS, 1)

    def forward(self, seen, actions, detach=False):
        x = torch.cat([self.encoder(seen, detach), actions], 1)
        return self.q1(x), self.q2(x)


class Curl:
    def __init__(self):
        self.critic, self.actor = Critic().to(device), mlp(FEATURES, 2 * ACTIONS).to(device)
        self.target = copy.deepcopy(self.critic)
        self.bilinear = nn.Parameter(torch.rand(FEATURES, FEATURES, device=device))
        fused = device.type == "cuda"
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3, fused=fused)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3, fused=fused)
        agreeing = [*self.critic.encoder.parameters(), self.bilinear]
        self.agree_optimizer = torch.optim.Adam(agreeing, lr=1e-3, fused=fused)
        self.step, self.shown = 0, {}

    def act(self, features):
        mean, spread = self.actor(features).chunk(2, 1)
        spread = (-10 + 6 * (spread.tanh() + 1)).clamp(max=2)
        noise = torch.randn_like(mean)
        action = (mean + noise * spread.exp()).tanh()
        likely = (-0.5 * noise.square() - spread).sum(1, keepdim=True)
        return action, likely - torch.log(F.relu(1 - action.square()) + 1e-6).sum(1, keepdim=True)

    def update(self, memory):
        seen, actions, rewards, then, other = memory.sample()
        with torch.no_grad():
            action, likely = self.act(self.critic.encoder(then))
            value = torch.min(*self.target(then, action)) - ALPHA * likely
            wanted = rewards + GAMMA * value
        q1, q2 = self.critic(seen, actions)
        critic_loss = F.mse_loss(q1, wanted) + F.mse_loss(q2, wanted)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if self.step % 2 == 0:
            action, likely = self.act(self.critic.encoder(seen, detach=True).detach())
            actor_loss = (ALPHA * likely - torch.min(*self.critic(seen, action, detach=True))).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            with torch.no_grad():
                pairs = zip(self.target.parameters(), self.critic.parameters(), strict=True)
                for old, new in pairs:
                    old.lerp_(new, TAU)
        mine = self.critic.encoder(seen)
        with torch.no_grad():
            theirs = self.target.encoder(other)
        logits = mine @ (self.bilinear @ theirs.T)
        agree_loss = F.cross_entropy(
            logits - logits.amax(1, keepdim=True), torch.arange(BATCH, device=device)
        )
        self.agree_optimizer.zero_grad()
        agree_loss.backward()
        self.agree_optimizer.step()
        if "losses-rarely" not in FIX or self.step % 20 == 0 or self.step == STEPS - 1:
            self.shown = {"critic": critic_loss.item(), "agree": agree_loss.item()}
        self.step += 1


memory, agent = Memory(np.random.default_rng(0)), Curl()
lead, began = min(STEPS // 2, 5), 0.0
for step in range(STEPS):
    if step == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    agent.update(memory)
    if step % 20 == 0:
        print(f"update {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in agent.shown.items()))
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"critic {agent.shown['critic']:.5f}, agree {agent.shown['agree']:.4f}; {each:.3f} ms per update")
