"""Play by pictures: quantiles of what an action will bring, learned from a memory of frames."""

import os
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # of learning
KEPT, BATCH, PLAYERS, QUANTILES, ACTIONS, LATER = (
    (60, 8, 2, 8, 4, 2) if TINY else (20_000, 256, 16, 200, 18, 100)
)
SIDE, STACK, GAMMA = 84, 4, 0.99
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
rng = np.random.default_rng(0)


class LazyFrames:
    """Frames that follow each other, held once however many stacks have them."""

    def __init__(self, frames):
        self.frames = tuple(frames)

    def __array__(self, dtype=None, copy=None):
        stacked = np.stack(self.frames)
        return stacked if dtype is None else stacked.astype(dtype)


class Players:
    """Games whose pictures are noise around what was done."""

    def __init__(self):
        self.stacks = [deque([self.frame(0)] * STACK, STACK) for _ in range(PLAYERS)]

    @staticmethod
    def frame(action):
        return rng.integers(0, 200, (SIDE, SIDE), dtype=np.uint8) + np.uint8(3 * action)

    def states(self):
        return [LazyFrames(stack) for stack in self.stacks]

    def step(self, actions):
        for stack, action in zip(self.stacks, actions, strict=True):
            stack.append(self.frame(action))
        return [float(action % 3 == 0) for action in actions], [random.random() < 0.01 for _ in actions]


class Memory:
    def __init__(self):
        self.moments = deque(maxlen=KEPT)

    def add(self, state, action, reward, then, end):
        self.moments.append((state, action, reward, then, end))

    def sample(self):
        chosen = random.sample(range(len(self.moments)), BATCH)
        states, actions, rewards, thens, ends = zip(*(self.moments[i] for i in chosen), strict=True)
        if "bytes-sent" in FIX:
            both = (torch.from_numpy(np.stack([np.array(one) for one in some])) for some in (states, thens))
            states, thens = (one.to(device).float() / 255 for one in both)
        else:
            states = torch.FloatTensor(np.array([np.array(one) for one in states]) / 255.0).to(device)
            thens = torch.FloatTensor(np.array([np.array(one) for one in thens]) / 255.0).to(device)
        return (
            states,
            *(torch.tensor(one).to(device) for one in (actions, rewards)),
            thens,
            torch.tensor(ends, dtype=torch.float32).to(device),
        )


class MemoryOnDevice:
    """The same moments; frames are bytes on the device, and moments are places among them."""

    def __init__(self):
        self.room = KEPT * 2 + 8 * PLAYERS
        self.frames = torch.zeros(self.room, SIDE, SIDE, dtype=torch.uint8, device=device)
        self.places, self.count, self.moments = {}, 0, deque(maxlen=KEPT)

    def placed(self, stack):
        found = []
        for frame in stack.frames:
            if id(frame) not in self.places:
                self.frames[self.count % self.room] = torch.from_numpy(frame).to(device)
                self.places[id(frame)] = (self.count % self.room, frame)
                self.count += 1
            found.append(self.places[id(frame)][0])
        return found

    def add(self, state, action, reward, then, end):
        self.moments.append((self.placed(state), action, reward, self.placed(then), float(end)))
        while len(self.places) > self.room - 8:
            del self.places[next(iter(self.places))]

    def sample(self):
        chosen = random.sample(range(len(self.moments)), BATCH)
        states, actions, rewards, thens, ends = zip(*(self.moments[i] for i in chosen), strict=True)
        at = torch.tensor([states, thens]).to(device)
        states, thens = self.frames[at].float().div(255)
        return (
            states,
            *(torch.tensor(one).to(device) for one in (actions, rewards)),
            thens,
            torch.tensor(ends, dtype=torch.float32).to(device),
        )


class QRDQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3),
            nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS * QUANTILES),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x).unflatten(1, (ACTIONS, QUANTILES))


def learn(model, later, optimizer, batch):
    states, actions, rewards, thens, ends = batch
    rows = torch.arange(BATCH, device=device)
    with torch.no_grad():
        best = model(thens).mean(2).argmax(1)
        aim = rewards[:, None] + GAMMA * (1 - ends[:, None]) * later(thens)[rows, best]
    off = aim[:, None, :] - model(states)[rows, actions][:, :, None]
    level = (torch.arange(QUANTILES, device=device) + 0.5)[None, :, None] / QUANTILES
    huber = torch.where(off.abs() < 1, 0.5 * off.square(), off.abs() - 0.5)
    loss = ((level - (off.detach() < 0).float()).abs() * huber).mean(2).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def act(model, states):
    """The best action, or any."""
    x = torch.from_numpy(np.stack([np.array(one) for one in states])).to(device).float() / 255
    best = model(x).mean(2).argmax(1).tolist()
    return [random.randrange(ACTIONS) if random.random() < 0.05 else one for one in best]


def main():
    with device:
        model, later = QRDQN(), QRDQN()
    later.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, eps=0.01 / BATCH, fused=device.type == "cuda")
    players, memory = Players(), (MemoryOnDevice if "frames-on-device" in FIX else Memory)()

    def play(actions):
        states = players.states()
        rewards, ends = players.step(actions)
        for moment in zip(states, actions, rewards, players.states(), ends, strict=True):
            memory.add(*moment)

    for _ in range(KEPT // PLAYERS // 2):  # before it learns, it plays at random
        play([random.randrange(ACTIONS) for _ in range(PLAYERS)])
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        play(act(model, players.states()))
        loss = learn(model, later, optimizer, memory.sample())
        if step % LATER == 0:
            later.load_state_dict(model.state_dict())
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, {len(memory.moments)} moments")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
