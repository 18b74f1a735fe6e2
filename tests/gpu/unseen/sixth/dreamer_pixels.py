"""A world model learnt from pixels (Dreamer): recurrent states, pictures decoded, an actor that imagines."""

import itertools
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 20))
BATCH, CHUNK, HORIZON, EPISODES, LENGTH = (2, 4, 3, 3, 12) if TINY else (50, 50, 15, 40, 500)
DEPTH, STATE, BELIEF, HIDDEN, ACTIONS = (2, 4, 8, 8, 2) if TINY else (32, 30, 200, 300, 6)
DISCOUNT, LAMBDA, FREE_NATS = 0.99, 0.95, 3.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Replay:
    """Episodes as arrays of bytes; chunks of them as a batch."""

    def __init__(self):
        self.frames, self.actions, self.rewards = [], [], []

    def add(self, frames, actions, rewards):
        self.frames.append(frames)
        self.actions.append(actions)
        self.rewards.append(rewards)

    def sample(self, n, length):
        chunks = []
        for _ in range(n):
            e = rng.integers(len(self.frames))
            start = rng.integers(len(self.frames[e]) - length + 1)
            cut = slice(start, start + length)
            chunks.append((self.frames[e][cut], self.actions[e][cut], self.rewards[e][cut]))
        frames, actions, rewards = (np.stack(one, 1) for one in zip(*chunks, strict=True))
        if "bytes-over" in FIX:
            frames = torch.from_numpy(frames).to(device).float() / 255.0 - 0.5
        else:
            frames = frames.astype(np.float32) / 255.0 - 0.5
            frames = torch.as_tensor(frames).to(device)
        return frames, torch.as_tensor(actions).to(device), torch.as_tensor(rewards).to(device)


def episode():
    """A bright square that is pushed about over a grey floor."""
    frames = np.full((LENGTH, 3, 64, 64), 80, np.uint8)
    frames += rng.integers(0, 20, frames.shape, dtype=np.uint8)
    actions = rng.uniform(-1, 1, (LENGTH, ACTIONS)).astype(np.float32)
    x, y = (28 + 20 * np.tanh(0.2 * np.cumsum(actions[:, i])) for i in (0, 1))
    for t in range(LENGTH):
        frames[t, :, int(y[t]) : int(y[t]) + 8, int(x[t]) : int(x[t]) + 8] = 220
    rewards = 1 - np.hypot(x - 28, y - 28).astype(np.float32) / 40
    return frames, actions, rewards.astype(np.float32)


def mlp(inputs, outputs, layers=2):
    sizes = [inputs] + [HIDDEN] * layers
    parts = []
    for a, b in itertools.pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ELU()]
    return nn.Sequential(*parts, nn.Linear(HIDDEN, outputs))


class Encoder(nn.Sequential):
    def __init__(self):
        d = DEPTH
        parts = []
        for a, b in ((3, d), (d, 2 * d), (2 * d, 4 * d), (4 * d, 8 * d)):
            parts += [nn.Conv2d(a, b, 4, 2), nn.ReLU()]
        super().__init__(*parts, nn.Flatten())


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        d = DEPTH
        self.linear = nn.Linear(BELIEF + STATE, 32 * d)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(32 * d, 4 * d, 5, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * d, 2 * d, 5, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * d, d, 6, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(d, 3, 6, 2),
        )

    def forward(self, feature):
        return self.net(self.linear(feature)[:, :, None, None])


class RSSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(STATE + ACTIONS, BELIEF), nn.ELU())
        self.cell = nn.GRUCell(BELIEF, BELIEF)
        self.prior = mlp(BELIEF, 2 * STATE, 1)
        self.posterior = mlp(BELIEF + 32 * DEPTH, 2 * STATE, 1)

    @staticmethod
    def draw(out):
        mean, std = out.chunk(2, -1)
        std = F.softplus(std) + 0.1
        return mean, std, mean + std * torch.randn_like(mean)

    def imagine(self, belief, state, action):
        belief = self.cell(self.embed(torch.cat([state, action], -1)), belief)
        return (belief, *self.draw(self.prior(belief)))

    def observe(self, embedded, actions):
        belief = torch.zeros(embedded.size(1), BELIEF, device=embedded.device)
        state = torch.zeros(embedded.size(1), STATE, device=embedded.device)
        beliefs, states, priors, posteriors = [], [], [], []
        for t in range(len(embedded)):
            belief, mean, std, _ = self.imagine(belief, state, actions[t])
            priors.append(torch.cat([mean, std], -1))
            mean, std, state = self.draw(self.posterior(torch.cat([belief, embedded[t]], -1)))
            posteriors.append(torch.cat([mean, std], -1))
            beliefs.append(belief)
            states.append(state)
        return [torch.stack(one) for one in (beliefs, states, priors, posteriors)]


def divergence(posterior, prior):
    (m1, s1), (m2, s2) = posterior.chunk(2, -1), prior.chunk(2, -1)
    return (torch.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5).sum(-1)


encoder, decoder, rssm = Encoder().to(device), Decoder().to(device), RSSM().to(device)
reward_model, critic = mlp(BELIEF + STATE, 1).to(device), mlp(BELIEF + STATE, 1, 3).to(device)
actor = mlp(BELIEF + STATE, 2 * ACTIONS, 3).to(device)
model_parameters = [p for m in (encoder, decoder, rssm, reward_model) for p in m.parameters()]
model_optimizer = torch.optim.Adam(model_parameters, lr=6e-4, eps=1e-5)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=8e-5, eps=1e-5)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=8e-5, eps=1e-5)
replay = Replay()
for _ in range(EPISODES):
    replay.add(*episode())


def update():
    frames, actions, rewards = replay.sample(BATCH, CHUNK)
    embedded = encoder(frames.flatten(0, 1)).view(CHUNK, BATCH, -1)
    beliefs, states, priors, posteriors = rssm.observe(embedded, actions)
    feature = torch.cat([beliefs, states], -1)
    decoded = decoder(feature.flatten(0, 1))
    picture_loss = 0.5 * (decoded - frames.flatten(0, 1)).square().sum((1, 2, 3)).mean()
    reward_loss = 0.5 * (reward_model(feature).squeeze(-1) - rewards).square().mean()
    kl = divergence(posteriors, priors).mean().clamp(min=FREE_NATS)
    model_optimizer.zero_grad()
    (picture_loss + reward_loss + kl).backward()
    nn.utils.clip_grad_norm_(model_parameters, 100.0)
    model_optimizer.step()

    for p in model_parameters:
        p.requires_grad_(False)
    belief, state = beliefs.detach().flatten(0, 1), states.detach().flatten(0, 1)
    features = []
    for _ in range(HORIZON):
        _, _, drawn = rssm.draw(actor(torch.cat([belief, state], -1).detach()))
        belief, _, _, state = rssm.imagine(belief, state, torch.tanh(drawn))
        features.append(torch.cat([belief, state], -1))
    features = torch.stack(features)
    reward, value = reward_model(features).squeeze(-1), critic(features).squeeze(-1)
    returns, last = [], value[-1]
    for t in reversed(range(HORIZON - 1)):
        last = reward[t] + DISCOUNT * ((1 - LAMBDA) * value[t + 1] + LAMBDA * last)
        returns.append(last)
    returns = torch.stack(returns[::-1])
    actor_loss = -returns.mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 100.0)
    actor_optimizer.step()
    for p in model_parameters:
        p.requires_grad_(True)

    value = critic(features[:-1].detach()).squeeze(-1)
    value_loss = 0.5 * (value - returns.detach()).square().mean()
    critic_optimizer.zero_grad()
    value_loss.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 100.0)
    critic_optimizer.step()
    return picture_loss, reward_loss, kl, actor_loss, value_loss


times, metrics = [], []
for step in range(STEPS):
    began = time.perf_counter()
    losses = update()
    if "metrics-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
        metrics = [one.item() for one in losses]
    times.append(time.perf_counter() - began)
    if step % 10 == 0:
        print(f"update {step}: " + " ".join(f"{one:.3f}" for one in metrics))
kept = times[min(STEPS // 2, 5) :]
print(f"observation loss {metrics[0]:.3f}; {1e3 * sum(kept) / len(kept):.3f} ms per update")
