"""Programs that do something else after every so many steps, as their authors write them.

Each prints ``clock: S``, the seconds of a step with its share of the round, by its own clock: the mean of the
rounds that end at ``lap()``, but the longest, in which the program was paused to be recorded.
"""

from __future__ import annotations

from typing import NamedTuple

from programs import OPTIMIZERS

HEAD = f"""{OPTIMIZERS}
import tempfile
import time
from pathlib import Path
from statistics import mean
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_num_threads(1)
laps = []
def lap():
    laps.append(time.perf_counter())
def finish(steps):
    rounds = [after - before for before, after in zip(laps, laps[1:])]
    print("clock:", mean(sorted(rounds[1:])[:-1]) / steps)
def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 32), nn.Tanh(), nn.Linear(32, b))
def wait(seconds):
    # what a device or a disk takes, on a machine that others use
    time.sleep(seconds)
folder = Path(tempfile.mkdtemp())
"""

# A trainer that saves after every so many steps.
CHECKPOINTS = """
class Trainer:
    def __init__(self, model, optimizer, save_steps):
        self.model, self.optimizer, self.save_steps, self.global_step = model, optimizer, save_steps, 0
    def training_step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        wait(0.008)
        return loss.detach()
    def train(self, max_steps):
        while self.global_step < max_steps:
            self.training_step(torch.randn(8, 16), torch.randint(0, 4, (8,)))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_step += 1
            if self.global_step % self.save_steps == 0:
                self.save_checkpoint()
                lap()
    def save_checkpoint(self):
        torch.save(self.model.state_dict(), folder / "checkpoint.pt")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        wait(0.08)
model = mlp(16, 4)
Trainer(model, torch.optim.AdamW(model.parameters()), EVERY).train(ROUNDS * EVERY)
finish(EVERY)
"""

# Each epoch is so many batches, then an evaluation of the model.
EPOCHS = """
model = mlp(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
for epoch in range(ROUNDS):
    model.train()
    for batch in range(EVERY):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:8]), y[:8]).backward()
        wait(0.008)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for at in range(0, 64, 8):
            model(x[at:at + 8])
            wait(0.01)
    lap()
finish(EVERY)
"""

# A GAN that looks at what it generates now and then.
GAN = """
generator, discriminator = mlp(4, 8), mlp(8, 1)
optimizer_d = torch.optim.Adam(discriminator.parameters())
optimizer_g = torch.optim.Adam(generator.parameters())
real, fixed = torch.randn(16, 8), torch.randn(16, 4)
for iteration in range(1, ROUNDS * EVERY + 1):
    optimizer_d.zero_grad()
    fake = generator(torch.randn(16, 4))
    (discriminator(fake.detach()).mean() - discriminator(real).mean()).backward()
    optimizer_d.step()
    wait(0.003)
    optimizer_g.zero_grad()
    (-discriminator(fake).mean()).backward()
    optimizer_g.step()
    wait(0.003)
    if iteration % EVERY == 0:
        with torch.no_grad():
            samples = generator(fixed)
            torch.save(samples, folder / "samples.pt")
            wait(0.06)
        lap()
finish(EVERY)
"""

# Something is learnt for each sample, by an optimizer of its own: an explanation, a latent.
PER_SAMPLE = """
model = mlp(16, 4)
optimizer = torch.optim.Adam(model.parameters())
model.train()
for epoch in range(15):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,))).backward()
    optimizer.step()
model.eval()
def explain(x):
    mask = nn.Parameter(torch.randn(16))
    optimizer = torch.optim.Adam([mask], lr=0.01)
    for epoch in range(EVERY):
        optimizer.zero_grad()
        F.cross_entropy(model(x * mask.sigmoid()), torch.zeros(1, dtype=torch.long)).backward()
        optimizer.step()
        wait(0.004)
    return mask.detach().sigmoid()
for sample in range(ROUNDS):
    best = explain(torch.randn(1, 16)).topk(3)
    wait(0.05)
    lap()
finish(EVERY)
"""


class Rounds(NamedTuple):
    """A program, its steps between two of what comes in, and how many rounds it makes."""

    source: str
    every: int
    rounds: int

    @property
    def script(self) -> str:
        return f"{HEAD}EVERY, ROUNDS = {self.every}, {self.rounds}\n{self.source}"


PROGRAMS: dict[str, Rounds] = {
    "checkpoints": Rounds(CHECKPOINTS, 25, 20),
    "epochs": Rounds(EPOCHS, 12, 25),
    "gan": Rounds(GAN, 50, 22),
    "per_sample": Rounds(PER_SAMPLE, 30, 75),
}
