"""A2C: 4096 quadrotors learn to hover. They are simulated on the device, the policy is compiled."""

import os
import time

import torch
import torch.nn as nn
from torch.distributions import Normal

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
UPDATES = int(os.environ.get("STEPS", 4 if TINY else 200))
N_ENVS, N_STEPS, SUBSTEPS = (16, 4, 2) if TINY else (4096, 16, 2)
BACKEND = "aot_eager" if TINY else "inductor"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)


def hamilton(a, b):
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        -1,
    )


def physics(pos, vel, quat, rate, motors, command):
    """Rigid bodies with four rotors, semi-implicit Euler."""
    dt = 0.01 / SUBSTEPS
    for _ in range(SUBSTEPS):
        motors = motors + (command - motors) * (dt / 0.03)
        f0, f1, f2, f3 = motors.unbind(-1)
        thrust = f0 + f1 + f2 + f3
        w, x, y, z = quat.unbind(-1)
        up = torch.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], -1)
        acc = up * (thrust / 0.7).unsqueeze(-1) - 0.1 * vel
        acc = acc - torch.tensor([0.0, 0.0, 9.81], device=pos.device)
        torque = torch.stack([0.1 * (f1 - f3), 0.1 * (f2 - f0), 0.02 * (f0 - f1 + f2 - f3)], -1)
        rate = rate + dt * (torque / 0.01 - 0.5 * rate)
        vel = vel + dt * acc
        pos = pos + dt * vel
        spin = torch.cat([torch.zeros_like(rate[:, :1]), rate], -1)
        quat = quat + 0.5 * dt * hamilton(quat, spin)
        quat = quat / quat.norm(dim=-1, keepdim=True)
    return pos, vel, quat, rate, motors


if "compile-physics" in FIX:
    physics = torch.compile(physics, backend=BACKEND)


class DroneEnv:
    def __init__(self, count):
        self.pos, self.vel, self.rate = (torch.zeros(count, 3, device=device) for _ in range(3))
        self.quat, self.motors = torch.zeros(count, 4, device=device), torch.zeros(count, 4, device=device)
        self.progress = torch.zeros(count, device=device)
        self.reset_idx(torch.arange(count, device=device))

    def reset_idx(self, ids):
        self.pos[ids] = torch.rand(len(ids), 3, device=device) * 2 - 1
        self.vel[ids], self.rate[ids], self.progress[ids] = 0.0, 0.0, 0.0
        self.quat[ids] = torch.tensor([1.0, 0.0, 0.0, 0.0], device=device)
        self.motors[ids] = 0.7 * 9.81 / 4

    def observe(self):
        return torch.cat([self.pos, self.vel, self.quat, self.rate, self.motors], -1)

    def step(self, action):
        command = (0.7 * 9.81 / 4) * (1 + action.clamp(-1, 1))
        state = physics(self.pos, self.vel, self.quat, self.rate, self.motors, command)
        self.pos, self.vel, self.quat, self.rate, self.motors = state
        self.progress = self.progress + 1
        distance = self.pos.norm(dim=-1)
        reward = 1 / (1 + distance**2) - 0.01 * self.rate.square().sum(-1) - 0.01 * action.square().sum(-1)
        done = (distance > 3) | (self.progress >= 500)
        ids = done.nonzero().flatten()
        if len(ids):
            self.reset_idx(ids)
        return self.observe(), reward, done.float()


class ActorCriticPolicy(nn.Module):
    def __init__(self, obs=17, act=4, hidden=256):
        super().__init__()
        layers = [nn.Linear(obs, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU()]
        self.body = nn.Sequential(*layers)
        self.mean, self.value = nn.Linear(hidden, act), nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def forward(self, obs):
        features = self.body(obs)
        mean = self.mean(features)
        if "no-check" not in FIX and not torch.isfinite(mean).all():
            raise FloatingPointError("the policy diverged")
        return mean, self.log_std.exp().expand_as(mean), self.value(features).squeeze(-1)


class RolloutBuffer:
    def __init__(self):
        self.obs = torch.zeros(N_STEPS, N_ENVS, 17, device=device)
        self.actions = torch.zeros(N_STEPS, N_ENVS, 4, device=device)
        self.rewards, self.dones, self.values = torch.zeros(3, N_STEPS, N_ENVS, device=device)

    def returns(self, last_value, gamma=0.99, lam=0.95):
        advantages, running = torch.zeros_like(self.rewards), 0.0
        for t in reversed(range(N_STEPS)):
            following = last_value if t == N_STEPS - 1 else self.values[t + 1]
            alive = 1 - self.dones[t]
            delta = self.rewards[t] + gamma * following * alive - self.values[t]
            advantages[t] = running = delta + gamma * lam * alive * running
        return advantages, advantages + self.values


class A2C:
    def __init__(self, env):
        self.env, self.buffer, self.obs = env, RolloutBuffer(), env.observe()
        self.policy = ActorCriticPolicy().to(device)
        self.forward = torch.compile(self.policy, backend=BACKEND)
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), 7e-4, alpha=0.99, eps=1e-5)

    @torch.no_grad()
    def collect_rollouts(self):
        for t in range(N_STEPS):
            mean, std, value = self.forward(self.obs)
            action = Normal(mean, std, validate_args=False).sample()
            self.buffer.obs[t], self.buffer.actions[t], self.buffer.values[t] = self.obs, action, value
            self.obs, self.buffer.rewards[t], self.buffer.dones[t] = self.env.step(action)
        return self.buffer.returns(self.forward(self.obs)[2])

    def train(self, advantages, returns):
        mean, std, value = self.forward(self.buffer.obs.flatten(0, 1))
        dist = Normal(mean, std, validate_args=False)
        log_prob = dist.log_prob(self.buffer.actions.flatten(0, 1)).sum(-1)
        adv = (advantages.flatten() - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss, value_loss = -(adv * log_prob).mean(), (value - returns.flatten()).square().mean()
        loss = policy_loss + 0.5 * value_loss - 0.001 * dist.entropy().sum(-1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()
        return value_loss

    def learn(self, updates):
        times, last = [], time.perf_counter()
        for update in range(updates):
            value_loss = self.train(*self.collect_rollouts()).item()
            times.append(time.perf_counter() - last)
            last = time.perf_counter()
            if update % 20 == 0:
                reward = self.buffer.rewards.mean().item()
                print(f"| iterations {update} | ep_rew {reward:.4f} | value_loss {value_loss:.4f} |")
        warm = times[updates // 3 :]
        mean = sum(warm) / len(warm)
        print(f"| fps {N_ENVS * N_STEPS / mean:.0f} | time per iteration {mean * 1e3:.4f} ms |")


A2C(DroneEnv(N_ENVS)).learn(UPDATES)
