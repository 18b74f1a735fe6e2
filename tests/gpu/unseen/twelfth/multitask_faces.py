"""A face, and all that can be said of it: one network with heads for five tasks."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
SIZE, BATCH, SIDE, WIDE, BLOCKS, TRAITS, POINTS, PEOPLE = (
    (8, 4, 32, 8, (1, 1), 6, 4, 5) if TINY else (384, 96, 192, 64, (3, 4, 6, 3), 40, 68, 2000)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Faces(nn.Module):
    """What all tasks share is nearly all of it."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(3, WIDE, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDE), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        parts, inputs = [], WIDE
        for stage, count in enumerate(BLOCKS):
            for place in range(count):
                parts.append(Block(inputs, WIDE * 2**stage, 2 if stage and not place else 1))
                inputs = WIDE * 2**stage
        self.trunk = nn.Sequential(*parts)
        outputs = {"traits": TRAITS, "age": 1, "points": 2 * POINTS, "person": PEOPLE, "mood": 7}
        self.heads = nn.ModuleDict(
            {
                task: nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, count))
                for task, count in outputs.items()
            }
        )

    def forward(self, x):
        x = self.trunk(self.enter(x)).mean((2, 3))
        return {task: head(x).float() for task, head in self.heads.items()}


def losses_of(found, wanted):
    return {
        "traits": F.binary_cross_entropy_with_logits(found["traits"], wanted["traits"]),
        "age": 0.1 * F.l1_loss(found["age"][:, 0], wanted["age"]),
        "points": F.smooth_l1_loss(found["points"], wanted["points"]),
        "person": 0.5 * F.cross_entropy(found["person"], wanted["person"]),
        "mood": F.cross_entropy(found["mood"], wanted["mood"]),
    }


def data():
    images = torch.randn(SIZE, 3, SIDE, SIDE, device=device).to(memory_format=torch.channels_last)
    wanted = {
        "traits": torch.randint(2, (SIZE, TRAITS), device=device).float(),
        "age": torch.rand(SIZE, device=device),
        "points": torch.rand(SIZE, 2 * POINTS, device=device),
        "person": torch.randint(PEOPLE, (SIZE,), device=device),
        "mood": torch.randint(7, (SIZE,), device=device),
    }
    images += wanted["age"][:, None, None, None]
    return images, wanted


class Trainer:
    def __init__(self):
        self.images, self.wanted = data()
        self.model = Faces().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.9, fused=device.type == "cuda"
        )
        self.shown = {}

    def step(self, number):
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = self.model(self.images[chosen])
        losses = losses_of(found, {task: one[chosen] for task, one in self.wanted.items()})
        self.optimizer.zero_grad()
        if "one-backward" in FIX:
            sum(losses.values()).backward()
        else:
            for loss in losses.values():
                loss.backward(retain_graph=True)
        self.optimizer.step()
        if "losses-rarely" not in FIX or number % 20 == 0 or number == STEPS - 1:
            self.shown = {task: loss.item() for task, loss in losses.items()}


def main():
    trainer = Trainer()
    lead, began = min(STEPS // 2, 5), 0.0
    for number in range(STEPS):
        if number == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        trainer.step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(", ".join(f"{task} {loss:.4f}" for task, loss in trainer.shown.items()))
    print(f"{each:.3f} ms per step")


main()
