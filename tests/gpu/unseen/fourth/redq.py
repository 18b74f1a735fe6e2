"""REDQ on a body with eight joints: ten critics, ten updates for each step in the environment."""

import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))  # in the environment
OBS, ACT, HIDDEN, BATCH = (5, 2, 16, 8) if TINY else (27, 8, 256, 256)
NUM_Q, NUM_MIN, UTD, GAMMA, POLYAK, ALPHA = 10, 2, 10, 0.99, 0.995, 0.2
START = 2 * BATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
seed = 0
torch.manual_seed(seed)
random.seed(seed)
np.random.seed(seed)


class ReplayBuffer:
    def __init__(self, size, where=None):
        self.obs1 = np.zeros((size, OBS), np.float32)
        self.obs2 = np.zeros((size, OBS), np.float32)
        self.acts = np.zeros((size, ACT), np.float32)
        self.rews = np.zeros(size, np.float32)
        self.done = np.zeros(size, np.float32)
        self.ptr, self.size, self.max_size = 0, 0, size
        if "replay-on-device" in FIX:
            self.names = ("obs1", "obs2", "acts", "rews", "done")
            self.on_device = [torch.from_numpy(getattr(self, name)).to(device) for name in self.names]

    def store(self, *transition):
        arrays = (self.obs1, self.acts, self.rews, self.obs2, self.done)
        for array, value in zip(arrays, transition, strict=True):
            array[self.ptr] = value
        if "replay-on-device" in FIX:
            for tensor, name in zip(self.on_device, self.names, strict=True):
                tensor[self.ptr] = torch.as_tensor(getattr(self, name)[self.ptr]).to(device)
        self.ptr = (self.ptr + 1) % self.max_size
        self.size = min(self.size + 1, self.max_size)

    def sample_batch(self):
        rows = np.random.randint(0, self.size, BATCH)
        if "replay-on-device" in FIX:
            rows = torch.from_numpy(rows).to(device)
            obs1, obs2, acts, rews, done = (tensor[rows] for tensor in self.on_device)
            return obs1, obs2, acts, rews.unsqueeze(1), done.unsqueeze(1)
        obs1 = torch.Tensor(self.obs1[rows]).to(device)
        obs2 = torch.Tensor(self.obs2[rows]).to(device)
        acts = torch.Tensor(self.acts[rows]).to(device)
        rews = torch.Tensor(self.rews[rows]).unsqueeze(1).to(device)
        done = torch.Tensor(self.done[rows]).unsqueeze(1).to(device)
        return obs1, obs2, acts, rews, done


def mlp(a, b):
    return nn.Sequential(
        nn.Linear(a, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, b)
    )


class Ensemble(nn.Module):
    """The critics as one network: a batch of matrix products for each layer."""

    def __init__(self, nets):
        super().__init__()
        layers = [[net[place] for net in nets] for place in (0, 2, 4)]
        self.w = nn.ParameterList(torch.stack([one.weight.detach().T for one in layer]) for layer in layers)
        self.b = nn.ParameterList(torch.stack([one.bias.detach()[None] for one in layer]) for layer in layers)

    def forward(self, x, members=None):
        pick = slice(None) if members is None else members
        x = x.expand(NUM_Q if members is None else len(members), *x.shape)
        for place, (w, b) in enumerate(zip(self.w, self.b, strict=True)):
            x = torch.baddbmm(b[pick], x, w[pick])
            x = x.relu() if place < 2 else x
        return x.squeeze(-1).T


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, 2 * ACT)

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        u = mean + std * torch.randn_like(std)
        log_prob = -0.5 * ((u - mean) / std) ** 2 - std.log() - 0.919 - 2 * (0.693 - u - F.softplus(-2 * u))
        return torch.tanh(u), log_prob.sum(-1, keepdim=True)


policy = Policy().to(device)
q_net_list = [mlp(OBS + ACT, 1).to(device) for _ in range(NUM_Q)]
q_target_list = [mlp(OBS + ACT, 1).to(device) for _ in range(NUM_Q)]
for net, target in zip(q_net_list, q_target_list, strict=True):
    target.load_state_dict(net.state_dict())
policy_optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
if "batched-critics" in FIX:
    critics, targets = Ensemble(q_net_list).to(device), Ensemble(q_target_list).to(device)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)
else:
    q_optimizer_list = [torch.optim.Adam(net.parameters(), lr=3e-4) for net in q_net_list]


def all_q(x):
    return critics(x) if "batched-critics" in FIX else torch.cat([net(x) for net in q_net_list], 1)


def train(last):
    obs1, obs2, acts, rews, done = buffer.sample_batch()
    with torch.no_grad():
        a2, log_prob = policy(obs2)
        chosen = random.sample(range(NUM_Q), NUM_MIN)
        x2 = torch.cat([obs2, a2], 1)
        if "batched-critics" in FIX:
            q2 = targets(x2, chosen)
        else:
            q2 = torch.cat([q_target_list[one](x2) for one in chosen], 1)
        y = rews + GAMMA * (1 - done) * (q2.min(1, keepdim=True).values - ALPHA * log_prob)
    q_loss = F.mse_loss(all_q(torch.cat([obs1, acts], 1)), y.expand(-1, NUM_Q)) * NUM_Q
    if "batched-critics" in FIX:
        critic_optimizer.zero_grad()
        q_loss.backward()
        critic_optimizer.step()
        pairs = zip(critics.parameters(), targets.parameters(), strict=True)
    else:
        for one in q_optimizer_list:
            one.zero_grad()
        q_loss.backward()
        for one in q_optimizer_list:
            one.step()
        nets = zip(q_net_list, q_target_list, strict=True)
        pairs = [
            pair for net, target in nets for pair in zip(net.parameters(), target.parameters(), strict=True)
        ]
    if last:
        action, log_prob = policy(obs1)
        policy_loss = (ALPHA * log_prob - all_q(torch.cat([obs1, action], 1)).mean(1, keepdim=True)).mean()
        policy_optimizer.zero_grad()
        policy_loss.backward()
        policy_optimizer.step()
    for p, p_target in pairs:
        p_target.data.mul_(POLYAK).add_((1 - POLYAK) * p.data)
    return q_loss


def move(body, action):
    body = 0.95 * body + 0.1 * np.tanh(action @ pull + 0.1 * np.roll(body, 1))
    return body.astype(np.float32), float(body[0] - 0.1 * (action**2).sum())


pull = np.random.randn(ACT, OBS).astype(np.float32)
buffer, body, updates, spent = ReplayBuffer(1_000_000 if not TINY else 500), np.zeros(OBS, np.float32), 0, 0.0
for step in range(START + STEPS):
    begun = time.time()
    if step < START:
        action = np.random.uniform(-1, 1, ACT).astype(np.float32)
    else:
        with torch.no_grad():
            action = policy(torch.Tensor(body).to(device).unsqueeze(0))[0].cpu().numpy()[0]
    after, reward = move(body, action)
    buffer.store(body, action, reward, after, 0.0)
    body = after
    if step >= START:
        for i in range(UTD):
            loss_q = train(i == UTD - 1)
        if step >= START + 2:
            updates, spent = updates + UTD, spent + time.time() - begun
        if step % 10 == 0:
            print(f"step {step}  LossQ {loss_q.item():.3f}")
print(f"final LossQ {loss_q.item():.4f}; {1e3 * spent / updates:.3f} ms per update")
