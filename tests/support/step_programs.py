"""Small programs whose authors count steps in different ways: what the recorder must call a step of each.

Each prints ``steps: N`` (how many it made, by its own count) and ``clock: S`` (the median seconds of one).
"""

from __future__ import annotations

from typing import NamedTuple

import loop_programs as loops
from programs import OPTIMIZERS

HEAD = """
import time
from statistics import median
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
times = []
def finish():
    print("steps:", len(times))
    print("clock:", median(times[len(times) // 2:]))
def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 32), nn.Tanh(), nn.Linear(32, b))
class Envs:
    def __init__(self, n):
        self.rng, self.state = np.random.default_rng(0), np.zeros((n, 4), np.float32)
    def step(self, action):
        noise = self.rng.standard_normal(self.state.shape)
        self.state = (0.9 * self.state + 0.1 * noise).astype(np.float32)
        return self.state, -np.abs(self.state[:, 0]), np.zeros(len(self.state), bool)
"""

# CleanRL's ppo.py: the agent's own methods call its actor and critic; eight steps, two epochs of two batches.
CLEANRL = """
from torch.distributions import Categorical
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor = mlp(4, 1), mlp(4, 2)
    def get_value(self, x):
        return self.critic(x)
    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)
agent, envs = Agent(), Envs(4)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4)
next_obs = torch.Tensor(envs.state)
for iteration in range(70):
    began = time.perf_counter()
    obs, actions, logprobs, rewards, values = [], [], [], [], []
    for step in range(8):
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        obs.append(next_obs), actions.append(action), logprobs.append(logprob), values.append(value.flatten())
        seen, reward, _ = envs.step(action.cpu().numpy())
        next_obs = torch.Tensor(seen)
        rewards.append(torch.tensor(reward))
    with torch.no_grad():
        next_value = agent.get_value(next_obs).flatten()
        returns = torch.stack(rewards) + 0.9 * torch.stack([*values[1:], next_value])
    obs, actions, logprobs = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
    returns = returns.flatten()
    for epoch in range(2):
        for part in np.array_split(np.random.permutation(32), 2):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs[part], actions[part])
            ratio = (newlogprob - logprobs[part]).exp()
            advantage = returns[part] - newvalue.flatten()
            loss = -(advantage.detach() * ratio).mean() + advantage.square().mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    times.append(time.perf_counter() - began)
"""

# stable-baselines3's PPO: the policy acts in eval mode and is called as a whole; training calls its parts.
SB3 = """
from torch.distributions import Categorical
class ActorCriticPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp_extractor, self.action_net, self.value_net = mlp(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
    def forward(self, obs):
        latent = self.mlp_extractor(obs)
        probs = Categorical(logits=self.action_net(latent))
        action = probs.sample()
        return action, self.value_net(latent), probs.log_prob(action)
    def evaluate_actions(self, obs, actions):
        latent = self.mlp_extractor(obs)
        probs = Categorical(logits=self.action_net(latent))
        return self.value_net(latent), probs.log_prob(actions), probs.entropy()
    def predict_values(self, obs):
        return self.value_net(self.mlp_extractor(obs))
class PPO:
    def __init__(self):
        self.policy, self.env = ActorCriticPolicy(), Envs(2)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4, eps=1e-5)
    def collect_rollouts(self):
        self.policy.train(False)
        self.buffer = []
        for n_steps in range(10):
            with torch.no_grad():
                obs = torch.as_tensor(self.env.state)
                actions, values, log_probs = self.policy(obs)
            _, rewards, _ = self.env.step(actions.cpu().numpy())
            self.buffer.append((obs, actions, log_probs, torch.as_tensor(rewards, dtype=torch.float32)))
        with torch.no_grad():
            self.policy.predict_values(obs)
    def train(self):
        self.policy.train(True)
        obs, actions, old, rewards = (torch.cat(kind) for kind in zip(*self.buffer))
        for epoch in range(3):
            for batch in torch.randperm(20).split(5):
                values, log_prob, entropy = self.policy.evaluate_actions(obs[batch], actions[batch])
                ratio = torch.exp(log_prob - old[batch])
                loss = -(ratio * rewards[batch]).mean() + F.mse_loss(rewards[batch], values.flatten())
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
    def learn(self):
        for iteration in range(60):
            began = time.perf_counter()
            self.collect_rollouts()
            self.train()
            times.append(time.perf_counter() - began)
PPO().learn()
"""

# Spinning Up's ppo.py: two optimizers, one after the other; training may stop early.
SPINUP = """
from torch.distributions import Categorical
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits_net = mlp(4, 2)
    def _distribution(self, obs):
        return Categorical(logits=self.logits_net(obs))
    def forward(self, obs, act=None):
        pi = self._distribution(obs)
        return pi, None if act is None else pi.log_prob(act)
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.v_net = mlp(4, 1)
    def forward(self, obs):
        return torch.squeeze(self.v_net(obs), -1)
class MLPActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.v = Actor(), Critic()
    def step(self, obs):
        with torch.no_grad():
            pi = self.pi._distribution(obs)
            a = pi.sample()
            return a.numpy(), self.v(obs).numpy(), pi.log_prob(a).numpy()
ac, env = MLPActorCritic(), Envs(1)
pi_optimizer = torch.optim.Adam(ac.pi.parameters(), lr=3e-4)
vf_optimizer = torch.optim.Adam(ac.v.parameters(), lr=1e-3)
o = env.state
for epoch in range(60):
    began = time.perf_counter()
    buffer = []
    for t in range(20):
        a, v, logp = ac.step(torch.as_tensor(o, dtype=torch.float32))
        next_o, r, d = env.step(a)
        buffer.append((o, a, r, logp))
        o = next_o
    obs, act, ret, old = (torch.as_tensor(np.concatenate(kind), dtype=torch.float32) for kind in zip(*buffer))
    for i in range(8 if epoch % 20 else 6):
        pi_optimizer.zero_grad()
        pi, logp = ac.pi(obs, act)
        (-(torch.exp(logp - old) * ret).mean()).backward()
        pi_optimizer.step()
    for i in range(8):
        vf_optimizer.zero_grad()
        ((ac.v(obs) - ret) ** 2).mean().backward()
        vf_optimizer.step()
    times.append(time.perf_counter() - began)
"""

# rl_games' a2c_common.py: one model, in eval mode while it plays and in train mode while it learns.
RL_GAMES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a2c_network = mlp(4, 3)
    def forward(self, batch):
        out = self.a2c_network(batch["obs"])
        mu, value = out[:, :2], out[:, 2]
        if batch["is_train"]:
            return {"prev_neglogp": (batch["prev_actions"] - mu).square().sum(1), "values": value}
        return {"actions": mu + torch.randn_like(mu), "values": value}
class A2CAgent:
    def __init__(self):
        self.model, self.vec_env = Model(), Envs(8)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
    def get_action_values(self, obs):
        self.model.eval()
        with torch.no_grad():
            return self.model({"is_train": False, "obs": obs})
    def play_steps(self):
        played = []
        for n in range(6):
            obs = torch.from_numpy(self.vec_env.state)
            res_dict = self.get_action_values(obs)
            _, rewards, _ = self.vec_env.step(res_dict["actions"].numpy())
            played.append((obs, res_dict["actions"], torch.from_numpy(rewards).float()))
        return [torch.cat(kind) for kind in zip(*played)]
    def train_epoch(self):
        self.model.eval()
        obs, actions, returns = self.play_steps()
        self.model.train()
        for mini_ep in range(4):
            for i in range(0, 48, 16):
                part = slice(i, i + 16)
                given = {"is_train": True, "obs": obs[part], "prev_actions": actions[part]}
                res = self.model(given)
                loss = (res["prev_neglogp"] * returns[part]).mean() + F.mse_loss(res["values"], returns[part])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
agent = A2CAgent()
for epoch in range(60):
    began = time.perf_counter()
    agent.train_epoch()
    times.append(time.perf_counter() - began)
"""

# A flip test: the image and its mirror image.
FLIP_TEST = """
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
for batch in range(90):
    began = time.perf_counter()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        out = model(images)
        out = (out + model(images.flip(3)).flip(3)) / 2
    out.amax((2, 3)).numpy()
    times.append(time.perf_counter() - began)
"""

# Guidance in a function of its own, a solver of the second order around it: four calls a step.
HEUN = """
model = mlp(16, 16).eval()
def denoise(x, sigma):
    with_prompt = model(x)
    return with_prompt + 2.0 * (with_prompt - model(x * 0))
@torch.no_grad()
def sample(steps):
    x = torch.randn(8, 16)
    for i in range(steps):
        began = time.perf_counter()
        d = denoise(x, 1.0)
        half = x + 0.1 * d
        x = x + 0.05 * (d + denoise(half, 0.9))
        times.append(time.perf_counter() - began)
    return x
for picture in range(9):
    sample(12)
"""

# A loop within the step, then another call of the same model: three calls a step.
INNER_LOOP = """
model = mlp(16, 16).eval()
with torch.no_grad():
    for batch in range(90):
        began = time.perf_counter()
        x = torch.randn(8, 16)
        for _ in range(2):
            x = model(x)
        model(x + 1).sum().item()
        times.append(time.perf_counter() - began)
"""

# Each epoch trains on twelve batches and evaluates on four; the model was evaluated before, too.
EPOCHS = """
from torch.utils.data import DataLoader, TensorDataset
model = mlp(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,))), 8)
test = DataLoader(TensorDataset(torch.randn(32, 16), torch.randint(0, 4, (32,))), 8)
def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in test:
            (model(x).argmax(1) == y).sum()
    model.train()
evaluate()
for epoch in range(9):
    for x, y in train:
        began = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    evaluate()
"""

# Evaluation by hand, without a loader.
EPOCHS_BY_HAND = """
model = mlp(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(128, 16), torch.randint(0, 4, (128,))
for epoch in range(9):
    for at in range(0, 96, 8):
        began = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x[at:at + 8]), y[at:at + 8]).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    model.eval()
    with torch.no_grad():
        for at in range(96, 128, 8):
            model(x[at:at + 8])
    model.train()
"""

# WGAN: five updates of the critic to one of the generator; an iteration is all six.
WGAN = """
generator, critic = mlp(4, 8), mlp(8, 1)
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=5e-5)
for iteration in range(80):
    began = time.perf_counter()
    for _ in range(5):
        fake = generator(torch.randn(16, 4)).detach()
        loss = critic(fake).mean() - critic(torch.randn(16, 8)).mean()
        optimizer_c.zero_grad()
        loss.backward()
        optimizer_c.step()
    loss = -critic(generator(torch.randn(16, 4))).mean()
    optimizer_g.zero_grad()
    loss.backward()
    optimizer_g.step()
    times.append(time.perf_counter() - began)
"""

# A GAN whose two networks are updated once each.
GAN = WGAN.replace("range(5)", "range(1)").replace("range(80)", "range(90)")

# DQN: four frames, each with a choice of the policy's, then an update; a target that has no gradients.
DQN = """
policy, target, env = mlp(4, 2), mlp(4, 2), Envs(1)
optimizer = torch.optim.Adam(policy.parameters())
memory, rng = [], np.random.default_rng(0)
began = time.perf_counter()
for frame in range(440):
    if rng.random() < max(0.1, 1 - frame / 60):
        action = rng.integers(2)
    else:
        with torch.no_grad():
            action = policy(torch.from_numpy(env.state)).argmax(1).item()
    state = env.state
    memory.append((state, env.step(action)[0]))
    if frame >= 40 and frame % 4 == 0:
        state, following = (torch.from_numpy(np.concatenate(kind)) for kind in zip(*memory[-32:]))
        loss = F.mse_loss(policy(state).amax(1), target(following).amax(1).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
"""

# Gradients of four micro-batches are added up.
ACCUMULATION = """
model = mlp(16, 4)
optimizer = torch.optim.AdamW(model.parameters())
for batch in range(90):
    began = time.perf_counter()
    for micro in range(4):
        (F.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,))) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - began)
"""

# After each epoch the statistics of BatchNorm are gathered anew, in train mode and without gradients.
RECALIBRATION = """
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for batch in range(12):
        began = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,))).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    with torch.no_grad():
        for batch in range(6):
            model(torch.randn(8, 16))
"""

# A teacher that is the student's moving average.
EMA_TEACHER = """
from copy import deepcopy
student = mlp(16, 4)
teacher = deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for batch in range(90):
    began = time.perf_counter()
    x = torch.randn(8, 16)
    with torch.no_grad():
        goal = teacher(x)
    optimizer.zero_grad()
    F.mse_loss(student(x + 0.1), goal).backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(teacher.parameters(), student.parameters()):
            a.lerp_(b, 0.01)
    times.append(time.perf_counter() - began)
"""

# DAgger: behaviour is cloned first; then rounds of acting, each followed by training on all data.
DAGGER = """
policy, env = mlp(4, 1), Envs(1)
optimizer = torch.optim.Adam(policy.parameters())
data = [env.step(0)[0] for _ in range(32)]
def clone(updates):
    for _ in range(updates):
        began = time.perf_counter()
        x = torch.from_numpy(np.concatenate(data[-32:]))
        optimizer.zero_grad()
        F.mse_loss(policy(x), x[:, :1]).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
clone(20)
for round in range(9):
    for t in range(10):
        with torch.no_grad():
            action = policy(torch.from_numpy(env.state)).numpy()
        data.append(env.step(action)[0])
    clone(10)
"""

# L-BFGS calls its closure several times a step.
LBFGS = """
model = mlp(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, tolerance_grad=0, tolerance_change=0)
x, y = torch.randn(32, 8), torch.randn(32, 1)
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss
for step in range(90):
    began = time.perf_counter()
    optimizer.step(closure)
    times.append(time.perf_counter() - began)
"""

# A student learns from a teacher in eval mode whose parameters could be trained.
DISTILLATION = """
teacher, student = mlp(16, 4).eval(), mlp(16, 4)
optimizer = torch.optim.Adam(student.parameters())
for step in range(90):
    began = time.perf_counter()
    x = torch.randn(8, 16)
    with torch.no_grad():
        logits = teacher(x)
    optimizer.zero_grad()
    F.kl_div(student(x).log_softmax(1), logits.log_softmax(1), log_target=True).backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
"""


class Expected(NamedTuple):
    """What the recorder makes of a program.

    Attributes:
        found_by: the kind of source.
        step: what it calls a step, as a regular expression.
        of: an event of the trace, and how many of them each recorded step has.
    """

    source: str
    found_by: str
    step: str
    of: tuple[str, int]


def _iterates(source: str, acts: int, module: str, updates: str, optimizer: str, each: int) -> Expected:
    words = f"one iteration of {acts} calls of {module} without gradients, then {updates}"
    return Expected(source, "iteration", words, (f"Optimizer.step#{optimizer}.step", each))


def _steps(source: str, optimizer: str) -> Expected:
    return Expected(
        source, "optimizer", rf"one {optimizer}.step\(\)", (f"Optimizer.step#{optimizer}.step", 1)
    )


def _call(source: str, what: str, event: str, each: int) -> Expected:
    return Expected(source, "module", f"one call of {what}", (event, each))


WHOLE = r"one iteration of 5 Adam.step\(\) and 1 RMSprop.step\(\) of another optimizer"
EXPECTED: dict[str, Expected] = {
    "cleanrl": _iterates(CLEANRL, 8, "Sequential", r"4 Adam.step\(\)", "Adam", 4),
    "sb3": _iterates(SB3, 10, "ActorCriticPolicy", r"12 Adam.step\(\)", "Adam", 12),
    "spinup": _iterates(SPINUP, 20, "Sequential", "(14|16) steps of optimizers", "Adam", 16),
    "rl_games": _iterates(RL_GAMES, 6, "Model", r"12 Adam.step\(\)", "Adam", 12),
    "flip_test": Expected(
        FLIP_TEST, "module", r"2 calls of Sequential.forward at flip_test.py:\d+", ("aten::conv2d", 4)
    ),
    "heun": Expected(
        HEUN, "module", r"4 calls of Sequential.forward under denoise \(heun.py:\d+\)", ("aten::linear", 8)
    ),
    "inner_loop": Expected(
        INNER_LOOP, "module", r"3 calls of Sequential.forward at inner_loop.py:\d+", ("aten::linear", 6)
    ),
    "epochs": _steps(EPOCHS, "SGD"),
    "epochs_by_hand": _steps(EPOCHS_BY_HAND, "SGD"),
    "wgan": Expected(WGAN, "optimizer", WHOLE, ("Optimizer.step#Adam.step", 5)),
    "gan": _steps(GAN, "Adam"),
    "dqn": _steps(DQN, "Adam"),
    "accumulation": _steps(ACCUMULATION, "AdamW"),
    "recalibration": _steps(RECALIBRATION, "SGD"),
    "ema_teacher": _steps(EMA_TEACHER, "SGD"),
    "dagger": _steps(DAGGER, "Adam"),
    "lbfgs": _steps(LBFGS, "LBFGS"),
    "distillation": _steps(DISTILLATION, "Adam"),
    "pipeline": _call(
        loops.PIPELINE, r"Pipeline.__call__ in the loop at pipeline.py:\d+", "aten::linear", 25
    ),
    "estimates": _steps(loops.ESTIMATES, "AdamW"),
    "normalized": _steps(loops.NORMALIZED, "Adam"),
    "by_hand": _call(loops.BY_HAND, r"Sequential under train \(by_hand.py:\d+\)", "aten::embedding", 1),
    "documents": _call(loops.DOCUMENTS, r"perplexity in the loop at documents.py:\d+", "aten::item", 1),
    "doubts": _call(loops.DOUBTS, r"doubts in the loop at doubts.py:\d+", "aten::dropout", 12),
    "evaluations": _call(loops.EVALUATIONS, r"Sequential under evaluate \(.*\)", "aten::argmax", 1),
    "serving": _call(loops.SERVING, r"Sequential under Server.answer \(.*\)", "aten::stack", 1),
    "application": _call(loops.APPLICATION, r"Net under predict \(application.py:\d+\)", "aten::topk", 1),
    "search": Expected(loops.SEARCH, "loop", r"one pass of the loop at search.py:\d+", ("aten::randn", 1)),
    "simulation": Expected(
        loops.SIMULATION, "loop", r"one pass of the loop at simulation.py:\d+", ("aten::square", 1)
    ),
    "replays": Expected(
        loops.REPLAYS,
        "graph",
        r"one replay of a CUDA graph under Engine.decode \(replays.py:\d+\)",
        ("aten::relu", 4),
    ),
    "twice": Expected(
        loops.TWICE,
        "optimizer",
        r"one iteration of 2 Adam.step\(\) and 1 RMSprop.step\(\) of another optimizer",
        ("Optimizer.step#Adam.step", 2),
    ),
    "meta": Expected(
        loops.META,
        "optimizer",
        r"one iteration of 6 SGD.step\(\) and 1 Adam.step\(\) of another optimizer",
        ("Optimizer.step#SGD.step", 6),
    ),
    "td3": _steps(loops.TD3, "Adam"),
    "towers": Expected(loops.TOWERS, "optimizer", r"one AdamW.step\(\)", ("Optimizer.step#AdamW.step", 2)),
    "truncated": _steps(loops.TRUNCATED, "SGD"),
    "flags": _steps(loops.FLAGS, "Adam"),
    "cold": _steps(loops.COLD, "AdamW"),
}


def script(name: str) -> str:
    """The program, as a script."""
    return f"{OPTIMIZERS}{HEAD}{EXPECTED[name].source}finish()\n"
