"""A large picture kept in a small network of sines, which is compiled and learns in one graph a step."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 800))
SIZE, PIXELS, WIDE, LAYERS = (16, 64, 16, 2) if TINY else (4096, 1 << 16, 1024, 4)
OMEGA = 30.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
graphed = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Sine(nn.Module):
    def __init__(self, enter, leave, first=False):
        super().__init__()
        self.linear = nn.Linear(enter, leave)
        bound = 1 / enter if first else math.sqrt(6 / enter) / OMEGA
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(OMEGA * self.linear(x))


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [Sine(2, WIDE, first=True), *(Sine(WIDE, WIDE) for _ in range(LAYERS))]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDE, 3))

    def forward(self, coordinates):
        return self.layers(coordinates)


def loss_of(model, coordinates, colours):
    return F.mse_loss(model(coordinates), colours)


def painted():
    """A picture of waves and edges, as bytes on the device."""
    at = torch.linspace(-1, 1, SIZE, device=device)
    y, x = at[:, None], at[None]
    red = torch.sin(20 * x * y) + 0.5 * torch.sign(torch.sin(9 * x + 5 * y))
    green = torch.cos(15 * (x.square() + y.square())) * torch.sin(31 * x)
    blue = torch.sin(40 * y) * torch.cos(7 * x + 3 * y.square())
    picture = torch.stack([red, green, blue], 2)
    return (127.5 + 80 * picture).clamp(0, 255).to(torch.uint8).flatten(0, 1)


class Fitting:
    def __init__(self):
        self.picture, self.model = painted(), Siren().to(device)
        self.loss_of = torch.compile(loss_of, dynamic=False) if graphed else loss_of
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=graphed, capturable=graphed)
        self.loss = torch.zeros((), device=device)

    def step(self):
        """Pixels are drawn, looked up and learned from."""
        pixels = torch.randint(SIZE * SIZE, (PIXELS,), device=device)
        coordinates = torch.stack([pixels // SIZE, pixels % SIZE], 1) * (2 / (SIZE - 1)) - 1
        colours = self.picture[pixels].float() / 127.5 - 1
        loss = self.loss_of(self.model, coordinates, colours)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def captured(self):
        if not graphed:
            return self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def fit(self):
        replay = self.captured()
        lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
        for step in range(STEPS):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            replay()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = self.loss.item()
            if step % 200 == 0:
                print(f"step {step}: loss {shown:.6f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        print(f"loss {shown:.7f}; {each:.3f} ms per step")


Fitting().fit()
