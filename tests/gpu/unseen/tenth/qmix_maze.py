"""A team in a maze learns from whole episodes (QMIX): a mixer adds up what the agents expect."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
EPISODES, BATCH, LENGTH, AGENTS, SEEN, STATE, ACTIONS, WIDTH, MIXED = (
    (16, 4, 6, 2, 8, 10, 4, 8, 4) if TINY else (1000, 32, 60, 5, 80, 120, 11, 64, 32)
)
GAMMA, TARGET_EVERY = 0.99, 200
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Replay:
    """Episodes as they were played, all of them on the device."""

    def __init__(self):
        shape = (EPISODES, LENGTH + 1)
        self.obs = torch.randn(*shape, AGENTS, SEEN, device=device)
        self.state = torch.randn(*shape, STATE, device=device)
        self.actions = torch.randint(ACTIONS, (*shape, AGENTS), device=device)
        self.allowed = torch.rand(*shape, AGENTS, ACTIONS, device=device) < 0.7
        self.allowed.scatter_(3, self.actions[..., None], True)
        self.reward = (self.actions[..., 0] == 3).float() * 0.1 + self.state[..., 0] * 0.05
        ends = torch.randint(LENGTH // 2, LENGTH + 1, (EPISODES, 1), device=device)
        self.filled = (torch.arange(LENGTH + 1, device=device) < ends).float()

    def sample(self):
        rows = torch.randint(EPISODES, (BATCH,), device=device)
        return {name: kept[rows] for name, kept in vars(self).items()}


class RNNAgent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(SEEN + ACTIONS + AGENTS, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH) if "whole-episodes" in FIX else nn.GRUCell(WIDTH, WIDTH)
        self.fc2 = nn.Linear(WIDTH, ACTIONS)

    def forward(self, inputs, hidden):
        x = F.relu(self.fc1(inputs))
        if "whole-episodes" in FIX:
            x, hidden = self.rnn(x, hidden)
        else:
            x = hidden = self.rnn(x, hidden)
        return self.fc2(x), hidden


class Controller:
    """What all agents share: one network, which is told whose turn it is."""

    def __init__(self, agent):
        self.agent, self.names = agent, torch.eye(AGENTS, device=device)

    def start(self):
        self.hidden = torch.zeros(BATCH * AGENTS, WIDTH, device=device)

    def inputs(self, batch, t):
        before = batch["actions"][:, t - 1] if t else torch.zeros_like(batch["actions"][:, 0])
        last = F.one_hot(before, ACTIONS).float() * (1.0 if t else 0.0)
        names = self.names.expand(BATCH, -1, -1)
        return torch.cat([batch["obs"][:, t], last, names], 2).flatten(0, 1)

    def forward(self, batch, t):
        values, self.hidden = self.agent(self.inputs(batch, t), self.hidden)
        return values.view(BATCH, AGENTS, ACTIONS)

    def unrolled(self, batch):
        """Values of all actions at each time: episodes, times, agents, actions."""
        self.start()
        if "whole-episodes" not in FIX:
            return torch.stack([self.forward(batch, t) for t in range(LENGTH + 1)], 1)
        last = F.one_hot(batch["actions"], ACTIONS).float().roll(1, 1)
        last[:, 0] = 0
        names = self.names.expand(BATCH, LENGTH + 1, -1, -1)
        x = torch.cat([batch["obs"], last, names], 3).transpose(0, 1).flatten(1, 2)
        values, _ = self.agent(x, self.hidden[None])
        return values.view(LENGTH + 1, BATCH, AGENTS, ACTIONS).transpose(0, 1)


class Mixer(nn.Module):
    """Adds up values by weights that are positive and depend on the state."""

    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Linear(STATE, AGENTS * MIXED), nn.Linear(STATE, MIXED)
        self.w2 = nn.Linear(STATE, MIXED)
        self.b2 = nn.Sequential(nn.Linear(STATE, MIXED), nn.ReLU(), nn.Linear(MIXED, 1))

    def forward(self, values, state):
        values, state = values.reshape(-1, 1, AGENTS), state.reshape(-1, STATE)
        w1 = self.w1(state).abs().view(-1, AGENTS, MIXED)
        hidden = F.elu(torch.bmm(values, w1) + self.b1(state)[:, None])
        total = torch.bmm(hidden, self.w2(state).abs()[:, :, None]) + self.b2(state)[:, None]
        return total.view(BATCH, -1)


def main():
    replay, agent, mixer = Replay(), RNNAgent().to(device), Mixer().to(device)
    target_agent, target_mixer = copy.deepcopy(agent), copy.deepcopy(mixer)
    controller, target = Controller(agent), Controller(target_agent)
    parameters = [*agent.parameters(), *mixer.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=5e-4, alpha=0.99, eps=1e-5)
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = replay.sample()
        actions, mask = batch["actions"][:, :-1], batch["filled"][:, :-1]
        values = controller.unrolled(batch)
        chosen = values[:, :-1].gather(3, actions[..., None]).squeeze(3)
        with torch.no_grad():
            later = target.unrolled(batch)[:, 1:]
            own = values.detach().masked_fill(~batch["allowed"], -9999999)[:, 1:]
            best = later.gather(3, own.argmax(3, keepdim=True)).squeeze(3)
            more = batch["filled"][:, 1:]
            wanted = batch["reward"][:, :-1] + GAMMA * more * target_mixer(best, batch["state"][:, 1:])
        error = (mixer(chosen, batch["state"][:, :-1]) - wanted) * mask
        loss = error.square().sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 10)
        optimizer.step()
        if step % TARGET_EVERY == 0:
            target_agent.load_state_dict(agent.state_dict())
            target_mixer.load_state_dict(mixer.state_dict())
        if "figures-rarely" not in FIX or step == STEPS - 1:
            shown = loss.item()
            figures = (norm.item(), (error.abs().sum() / mask.sum()).item())
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, norm {figures[0]:.4f}, error {figures[1]:.4f}; {each:.3f} ms per step")


main()
