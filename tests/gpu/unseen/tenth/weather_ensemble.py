"""The weather of the next days, in eight ways: an ensemble that a network carries on six hours at a time."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 400))  # of six hours
MEMBERS, FIELDS, ROWS, COLUMNS, PATCH, WIDE, LAYERS, DAYS = (
    (2, 4, 16, 32, 4, 64, 1, 1) if TINY else (8, 48, 128, 256, 4, 1024, 12, 10)
)
HEADS, TOKENS = WIDE // 64, (ROWS // PATCH) * (COLUMNS // PATCH)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Forecaster(nn.Module):
    """What changes within six hours, patch by patch of the globe."""

    def __init__(self):
        super().__init__()
        size = FIELDS * PATCH * PATCH
        self.enter, self.leave = nn.Linear(size, WIDE), nn.Linear(WIDE, size)
        self.places = nn.Parameter(0.02 * torch.randn(1, TOKENS, WIDE))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDE)

    def forward(self, state):
        x = state.unflatten(2, (-1, PATCH)).unflatten(4, (-1, PATCH)).permute(0, 2, 4, 1, 3, 5)
        x = self.blocks(self.enter(x.reshape(len(x), TOKENS, -1).to(dtype)) + self.places)
        x = self.leave(self.norm(x)).unflatten(2, (FIELDS, PATCH, PATCH))
        x = x.unflatten(1, (ROWS // PATCH, COLUMNS // PATCH)).permute(0, 3, 1, 4, 2, 5)
        return 0.98 * state + 0.1 * x.reshape(state.shape).float()


class Rollout:
    """A step of all members as one graph, which reads and writes the same state."""

    def __init__(self, model):
        self.step, self.graph = model, None
        self.state = torch.zeros(MEMBERS, FIELDS, ROWS, COLUMNS, device=device)
        self.spread = torch.zeros(FIELDS, device=device)
        if device.type != "cuda":
            return
        for block in model.blocks:
            block.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.advance()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.advance()

    def advance(self):
        self.state.copy_(self.step(self.state))
        self.spread.copy_(self.state.std(0).mean((1, 2)))

    def __call__(self):
        if self.graph is None:
            self.advance()
        else:
            self.graph.replay()


@torch.no_grad()
def main():
    with device:
        model = Forecaster().to(dtype).eval()
    rollout = Rollout(model)
    analysis = torch.randn(FIELDS, ROWS, COLUMNS, device=device)
    lead, began, spreads = min(STEPS // 2, 8), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % (4 * DAYS) == 0:  # a new forecast: the analysis, a little disturbed for each member
            rollout.state.copy_(analysis + 0.05 * torch.randn_like(rollout.state))
        rollout()
        spreads.append(rollout.spread.clone())
        if "spread-at-end" not in FIX:
            spreads[-1] = spreads[-1].cpu()
    shown = spreads[-1].mean().item()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"spread after the last step {shown:.5f}; {each:.3f} ms per six hours")


main()
