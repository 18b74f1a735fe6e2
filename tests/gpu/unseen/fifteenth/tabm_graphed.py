"""What is a house worth? Thirty-two networks that share most of their weights, a step as one graph."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 300))
ROWS, BATCH, FIGURES, MEMBERS, WIDE, LAYERS = (
    (100, 8, 5, 4, 16, 2) if TINY else (500_000, 4096, 96, 32, 1024, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Shared(nn.Module):
    """One matrix for all members, with directions of their own before and after it."""

    def __init__(self, enter, leave, first):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(enter, leave).uniform_(-(enter**-0.5), enter**-0.5))
        signs = torch.randint(2, (MEMBERS, enter)).float() * 2 - 1
        self.before = nn.Parameter(signs if first else torch.ones(MEMBERS, enter))
        self.after = nn.Parameter(torch.ones(MEMBERS, leave))
        self.bias = nn.Parameter(torch.empty(MEMBERS, leave).uniform_(-(enter**-0.5), enter**-0.5))

    def forward(self, x):
        return ((x * self.before).flatten(0, 1) @ self.weight).unflatten(
            0, (-1, MEMBERS)
        ) * self.after + self.bias


class TabM(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Shared(WIDE if i else FIGURES, WIDE, first=i == 0) for i in range(LAYERS))
        self.heads = nn.Parameter(WIDE**-0.5 * (2 * torch.rand(MEMBERS, WIDE) - 1))

    def forward(self, figures, worth):
        """How far the members are off, each by itself."""
        x = figures[:, None].expand(-1, MEMBERS, -1)
        for layer in self.layers:
            x = layer(x).relu()
        found = (x.float() * self.heads).sum(2)
        return (found - worth[:, None]).square().mean()


class Training:
    """A step, captured once and replayed; which rows it takes lies in a tensor that stays where it is."""

    def __init__(self, model, figures, worth):
        self.model, self.figures, self.worth, self.graph = model, figures, worth, None
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-3, weight_decay=3e-4, fused=low, capturable=low
        )
        self.rows = torch.zeros(BATCH, dtype=torch.long, device=device)
        self.loss = torch.zeros((), device=device)
        if device.type != "cuda":
            return
        model.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.rows.random_(ROWS)
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            loss = self.model(self.figures[self.rows], self.worth[self.rows])
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def __call__(self):
        self.rows.random_(ROWS)
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()


def houses():
    """Figures, some of which matter together, on the device; worth has mean 0 and spread 1."""
    figures = torch.randn(ROWS, FIGURES, device=device)
    worth = (figures * torch.randn(FIGURES, device=device)).tanh().sum(1) + figures[:, 0] * figures[:, 1]
    return figures, (worth - worth.mean()) / worth.std()


def main():
    figures, worth = houses()
    with device:
        model = TabM()
    training = Training(model, figures, worth)
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        training()
        if "loss-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            shown = training.loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
