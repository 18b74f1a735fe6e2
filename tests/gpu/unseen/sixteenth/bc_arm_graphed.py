"""An arm that does as it was shown: a transformer of actions in chunks, a training step in one graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
MOMENTS, BATCH, SEEN, CHUNK, FEATURES, ACTIONS, WIDE, LAYERS, HEAD = (
    (80, 3, 4, 5, 12, 3, 32, 2, 16) if TINY else (20_000, 128, 64, 64, 256, 14, 512, 8, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Policy(nn.Module):
    """What is seen, how the arm stands, and a place for each action to come."""

    def __init__(self):
        super().__init__()
        self.seen, self.stands = nn.Linear(FEATURES, WIDE), nn.Linear(ACTIONS, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn(1, SEEN + 1 + CHUNK, WIDE))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(WIDE), nn.Linear(WIDE, ACTIONS)

    def forward(self, seen, stands):
        known = torch.cat([self.seen(seen), self.stands(stands)[:, None]], 1)
        x = F.pad(known, (0, 0, 0, CHUNK)) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.last(self.norm(x[:, -CHUNK:]))


class Shown:
    """What was shown, on the device: how the arm stood, and what was seen of each of fifty moments."""

    def __init__(self):
        moments = torch.arange(MOMENTS + CHUNK, device=device)[:, None]
        rates = 0.001 + 0.02 * torch.rand(ACTIONS, device=device)
        self.stands = torch.sin(rates * moments) + 0.01 * torch.randn(MOMENTS + CHUNK, ACTIONS, device=device)
        dtype = torch.bfloat16 if low else torch.float32
        self.seen = torch.randn(MOMENTS // 20, SEEN, FEATURES, device=device, dtype=dtype)
        self.ahead = torch.arange(1, CHUNK + 1, device=device)

    def batch(self):
        chosen = torch.randint(MOMENTS, (BATCH,), device=device)
        return self.seen[chosen // 20], self.stands[chosen], self.stands[chosen[:, None] + self.ahead]


class Training:
    """A step: draws a batch, and changes the policy by it; after a few it is one graph."""

    def __init__(self, policy, shown):
        self.policy, self.shown, self.graph = policy, shown, None
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=1e-4, weight_decay=1e-4, fused=low, capturable=low
        )
        self.loss = torch.zeros((), device=device)
        if low:
            self.capture()

    def capture(self):
        for layer in self.policy.layers:
            layer.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.optimizer.zero_grad()
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        seen, stands, actions = self.shown.batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            foreseen = self.policy(seen, stands)
        loss = F.l1_loss(foreseen.float(), actions)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def __call__(self):
        if self.graph is None:
            self.optimizer.zero_grad()
            self.step()
        else:
            self.graph.replay()


def main():
    with device:
        policy = Policy()
    training = Training(policy, Shown())
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        training()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = training.loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
