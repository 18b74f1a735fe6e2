"""PPO on a cart-pole of our own: eight environments, 128 steps a rollout, four epochs of four minibatches."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
ITERATIONS = int(os.environ.get("STEPS", 3 if TINY else 250))
ENVS, HORIZON, EPOCHS, MINIBATCHES = 8, 16 if TINY else 128, 4, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2

device = torch.device("cuda" if torch.cuda.is_available() and "cpu" not in FIX else "cpu")
if "cpu" in FIX:
    torch.set_num_threads(1)
if "no-validation" in FIX:
    Distribution.set_default_validate_args(False)
rng = np.random.default_rng(1)
torch.manual_seed(1)


class CartPoles:
    """Vectorised cart-pole with the usual constants."""

    def __init__(self, count):
        self.state = rng.uniform(-0.05, 0.05, (count, 4))

    def step(self, action):
        x, v, angle, omega = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        temp = (force + 0.05 * omega**2 * np.sin(angle)) / 1.1
        spin = 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        alpha = (9.8 * np.sin(angle) - np.cos(angle) * temp) / spin
        acc = temp - 0.05 * alpha * np.cos(angle) / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * acc, angle + 0.02 * omega, omega + 0.02 * alpha], 1)
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[done] = rng.uniform(-0.05, 0.05, (done.sum(), 4))
        return self.state.copy(), np.ones(len(done)), done


def mlp(out):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = mlp(2), mlp(1)

    def forward(self, obs, action=None):
        dist = Categorical(logits=self.actor(obs))
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action), dist.entropy(), self.critic(obs).squeeze(-1)


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
envs = CartPoles(ENVS)
obs = torch.zeros(HORIZON, ENVS, 4, device=device)
actions, logprobs, rewards, dones, values = (torch.zeros(HORIZON, ENVS, device=device) for _ in range(5))
next_obs = torch.Tensor(envs.state).to(device)
next_done = torch.zeros(ENVS, device=device)

times = []
for iteration in range(ITERATIONS):
    began = time.time()
    for t in range(HORIZON):
        obs[t], dones[t] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent(next_obs)
        actions[t], logprobs[t], values[t] = action, logprob, value
        observed, reward, done = envs.step(action.cpu().numpy())
        rewards[t] = torch.tensor(reward).to(device)
        next_obs, next_done = torch.Tensor(observed).to(device), torch.Tensor(done).to(device)

    with torch.no_grad():
        next_value = agent.critic(next_obs).squeeze(-1)
        where = "cpu" if "gae-on-cpu" in FIX else device
        r, v, d, last_v, last_d = (one.to(where) for one in (rewards, values, dones, next_value, next_done))
        advantages, running = torch.zeros_like(r), 0
        for t in reversed(range(HORIZON)):
            alive = 1.0 - (last_d if t == HORIZON - 1 else d[t + 1])
            following = last_v if t == HORIZON - 1 else v[t + 1]
            delta = r[t] + GAMMA * following * alive - v[t]
            running = delta + GAMMA * LAMBDA * alive * running
            advantages[t] = running
        advantages = advantages.to(device)
        returns = advantages + values

    b_obs, b_actions, b_logprobs = obs.view(-1, 4), actions.view(-1), logprobs.view(-1)
    b_advantages, b_returns = advantages.view(-1), returns.view(-1)
    indices, clipped = np.arange(HORIZON * ENVS), []
    for _ in range(EPOCHS):
        rng.shuffle(indices)
        for part in np.split(indices, MINIBATCHES):
            _, logprob, entropy, value = agent(b_obs[part], b_actions[part].long())
            ratio = (logprob - b_logprobs[part]).exp()
            clipped.append(((ratio - 1).abs() > CLIP).float().mean().item())
            adv = b_advantages[part]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            v_loss = 0.5 * ((value - b_returns[part]) ** 2).mean()
            loss = pg_loss + 0.5 * v_loss - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    times.append(time.time() - began)
    if iteration % 10 == 0:
        sps = int(HORIZON * ENVS / times[-1])
        share = np.mean(clipped)
        print(f"iteration {iteration}  SPS {sps}  value loss {v_loss.item():.3f}  clipped {share:.3f}")

settled = times[len(times) // 4 :]
print(f"mean iteration time: {sum(settled) / len(settled) * 1e3:.3f} ms")
