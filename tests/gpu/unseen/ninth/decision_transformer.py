"""Act by what is asked for: a Decision Transformer learns from recorded episodes of a hopping robot."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 300))
WARM = min(STEPS // 2, 10)
EPISODES, LONGEST, BATCH, CONTEXT, WIDTH, LAYERS = (
    (6, 30, 4, 5, 16, 1) if TINY else (300, 1000, 64, 20, 128, 3)
)
STATE, ACTION, SCALE = 11, 3, 1000.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def discount_cumsum(x, gamma):
    """What is still to come at each moment."""
    total = np.zeros_like(x)
    total[-1] = x[-1]
    for t in reversed(range(x.shape[0] - 1)):
        total[t] = x[t] + gamma * total[t + 1]
    return total


def record():
    """An episode: states, what was done, and what came of it."""
    length = int(rng.integers(LONGEST // 2, LONGEST + 1))
    states = np.cumsum(0.1 * rng.standard_normal((length, STATE)), 0).astype(np.float32)
    actions = np.tanh(states[:, :ACTION] + 0.1 * rng.standard_normal((length, ACTION))).astype(np.float32)
    return {"states": states, "actions": actions, "rewards": 1 + actions[:, 0].astype(np.float64)}


episodes = [record() for _ in range(EPISODES)]
all_states = np.concatenate([one["states"] for one in episodes])
mean, std = all_states.mean(0), all_states.std(0) + 1e-6
weights = np.array([len(one["states"]) for one in episodes], dtype=np.float64)
if "returns-kept" in FIX:
    for one in episodes:
        one["returns"] = discount_cumsum(one["rewards"], 1.0)


def get_batch():
    """Pieces of episodes, padded in front."""
    chosen = rng.choice(EPISODES, BATCH, p=weights / weights.sum())
    s, a, r, t, m = [], [], [], [], []
    for index in chosen:
        one = episodes[index]
        start = int(rng.integers(0, len(one["states"])))
        states = one["states"][start : start + CONTEXT]
        length, pad = len(states), CONTEXT - len(states)
        if "returns-kept" in FIX:
            returns = one["returns"][start : start + length]
        else:
            returns = discount_cumsum(one["rewards"][start:], 1.0)[:length]
        states = (np.concatenate([np.zeros((pad, STATE)), states]) - mean) / std
        actions = np.concatenate([np.full((pad, ACTION), -10.0), one["actions"][start : start + length]])
        s.append(states), a.append(actions)
        r.append(np.concatenate([np.zeros(pad), returns])[:, None] / SCALE)
        t.append(np.concatenate([np.zeros(pad), np.arange(start, start + length)]))
        m.append(np.concatenate([np.zeros(pad), np.ones(length)]))
    floats = [torch.from_numpy(np.stack(x)).to(device, torch.float32) for x in (s, a, r)]
    return *floats, *(torch.from_numpy(np.stack(x)).to(device, torch.long) for x in (t, m))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x))[:, None].chunk(3, 3)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0])
        return x + self.mlp(self.norm2(x))


class DecisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_time = nn.Embedding(LONGEST + 1, WIDTH)
        self.of_return, self.of_state = nn.Linear(1, WIDTH), nn.Linear(STATE, WIDTH)
        self.of_action, self.norm = nn.Linear(ACTION, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.act = nn.Sequential(nn.Linear(WIDTH, ACTION), nn.Tanh())
        before = torch.ones(3 * CONTEXT, 3 * CONTEXT).tril().bool()
        self.register_buffer("before", before)

    def forward(self, states, actions, returns, times, mask):
        at = self.of_time(times)
        parts = self.of_return(returns) + at, self.of_state(states) + at, self.of_action(actions) + at
        x = self.norm(torch.stack(parts, 2).flatten(1, 2))
        seen = mask.bool().repeat_interleave(3, 1)[:, None, None, :]
        own = torch.eye(3 * CONTEXT, dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, self.before & seen | own)
        return self.act(x.unflatten(1, (CONTEXT, 3))[:, :, 1])


model = DecisionTransformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
shown = (0.0, 0.0)
for step in range(STEPS):
    if step == WARM:
        began = clock()
    states, actions, returns, moments, mask = get_batch()
    found = model(states, actions, returns, moments, mask)
    errors = (found - actions).pow(2).mean(2) * mask
    loss = errors.sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    if "losses-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        shown = loss.item(), norm.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {shown[0]:.5f}, gradient {shown[1]:.4f}; {each:.3f} ms per step")
