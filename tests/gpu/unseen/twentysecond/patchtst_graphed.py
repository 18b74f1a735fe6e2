"""What comes next of 21 measures of the weather, from patches of what was: compiled, a step in one graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 800))
HOURS, MEASURES, BATCH, SEEN, AHEAD, PATCH, STRIDE, WIDE, LAYERS, HEAD = (
    (200, 3, 4, 16, 6, 4, 2, 32, 2, 16) if TINY else (52_000, 21, 64, 336, 96, 16, 8, 256, 4, 64)
)
PATCHES = (SEEN - PATCH) // STRIDE + 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Enter(nn.Module):
    """Each measure by itself, as far from its mean as its spread, in patches."""

    def __init__(self):
        super().__init__()
        self.linear, self.places = nn.Linear(PATCH, WIDE), nn.Parameter(0.02 * torch.randn(PATCHES, WIDE))

    def forward(self, seen):
        mean, spread = seen.mean(2, keepdim=True), seen.std(2, keepdim=True) + 1e-5
        patches = ((seen - mean) / spread).unfold(2, PATCH, STRIDE).flatten(0, 1)
        return self.linear(patches) + self.places, mean, spread


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Leave(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(PATCHES * WIDE, AHEAD)

    def forward(self, x, mean, spread, truth):
        found = self.linear(self.norm(x).flatten(1)).unflatten(0, (-1, MEASURES)).float()
        return F.mse_loss(found * spread + mean, truth)


class PatchTST(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = Enter(), Leave()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        for part in (self.enter, self.leave, *self.blocks):
            part.compile(backend=backend, dynamic=False)

    def forward(self, windows):
        x, mean, spread = self.enter(windows[:, :, :SEEN])
        for block in self.blocks:
            x = block(x)
        return self.leave(x, mean, spread, windows[:, :, SEEN:])


class Trainer:
    """The table lies on the device; where windows begin is written into a buffer that the graph reads."""

    def __init__(self):
        hours = torch.arange(HOURS, device=device)[:, None]
        with device:
            self.model = PatchTST()
            waves = torch.rand(3, MEASURES)
            self.table = torch.sin(hours / (4 + 20 * waves[0]) + 6 * waves[1]) + 0.3 * waves[2]
            self.table += 0.1 * torch.randn(HOURS, MEASURES)
            self.begin, self.loss = torch.zeros(BATCH, dtype=torch.long), torch.zeros(())
        self.after = torch.arange(SEEN + AHEAD, device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=low, capturable=low)

    def learn(self):
        windows = self.table[self.begin[:, None] + self.after].transpose(1, 2)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = self.model(windows)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def capture(self):
        if device.type != "cuda":
            return self.learn
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.learn()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.learn()
        return graph.replay

    def train(self):
        learn, lead, began, shown = self.capture(), min(STEPS // 2, 20), 0.0, 0.0
        for step in range(STEPS):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            self.begin.random_(HOURS - SEEN - AHEAD)
            learn()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = self.loss.item()
            if step % 100 == 0:
                print(f"step {step}: loss {shown:.4f}")
        if device.type == "cuda":
            torch.cuda.synchronize()
        each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
        print(f"loss {shown:.5f}; {each:.3f} ms per step")


Trainer().train()
