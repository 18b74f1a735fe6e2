"""Grokking: a transformer learns addition modulo a prime by heart, and understands it much later."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 40))  # rounds of a hundred epochs
PRIME, SHARE, WIDTH, HEADS, LAYERS, ROUND = (7, 0.5, 16, 2, 1, 4) if TINY else (113, 0.5, 256, 4, 2, 100)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "aot_eager"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        # Three tokens: sums over them are no work for matrix products.
        weights = ((q[:, :, :, None] * k[:, :, None]).sum(4) * (WIDTH // HEADS) ** -0.5).softmax(3)
        y = (weights[..., None] * v[:, :, None]).sum(3)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.relu(self.up(x)))


class Transformer(nn.Module):
    """a, b and "equals"; the answer is asked for at the last."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.randn(PRIME + 1, WIDTH) / WIDTH**0.5)
        self.places = nn.Parameter(torch.randn(3, WIDTH) / WIDTH**0.5)
        self.layers, self.head = (
            nn.ModuleList(Layer() for _ in range(LAYERS)),
            nn.Linear(WIDTH, PRIME, bias=False),
        )

    def forward(self, onehot, answers):
        x = onehot @ self.words + self.places
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x[:, -1])
        return F.cross_entropy(logits, answers), (logits.argmax(1) == answers).float().mean()


def problems():
    a, b = torch.meshgrid(torch.arange(PRIME), torch.arange(PRIME), indexing="ij")
    pairs = torch.stack([a, b, torch.full_like(a, PRIME)], 2).view(-1, 3)
    order = torch.randperm(len(pairs))
    pairs, answers = pairs[order], ((pairs[:, 0] + pairs[:, 1]) % PRIME)[order]
    onehot = F.one_hot(pairs, PRIME + 1).float()
    known = int(SHARE * len(pairs))
    parts = (onehot[:known], answers[:known]), (onehot[known:], answers[known:])
    return [tuple(x.to(device) for x in part) for part in parts]


class Epochs:
    """An epoch is a step; on a device it is captured once and replayed."""

    def __init__(self, model, optimizer, known):
        self.model, self.optimizer, self.known, self.graph = model, optimizer, known, None
        if device.type == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.once()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.once()
        else:
            for _ in range(3):
                self.loss = self.once()

    def once(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss, _ = self.model(*self.known)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self):
        if self.graph is None:
            self.loss = self.once()
        else:
            self.graph.replay()
        return self.loss


known, unknown = problems()
model = Transformer().to(device)
fast = torch.compile(model, backend=backend)
optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=1e-3,
    weight_decay=1.0,
    betas=(0.9, 0.98),
    capturable=device.type == "cuda",
    fused=device.type == "cuda",
)
epochs = Epochs(fast, optimizer, known)
times, test_loss, right = [], float("nan"), 0.0
for turn in range(STEPS):
    began = time.perf_counter()
    for epoch in range(ROUND):
        loss = epochs.run()
        if "loss-rarely" not in FIX and epoch % 25 == 0:
            shown = loss.item()
    shown = loss.item()
    if "test-rarely" not in FIX or turn == STEPS - 1:
        with torch.no_grad():
            test_loss, right = (float(x) for x in model(*unknown))
    times.append(time.perf_counter() - began)
    if turn % 10 == 0:
        print(f"epoch {turn * ROUND}: loss {shown:.4f}, test {test_loss:.4f}")
kept = times[min(STEPS // 2, 2) :]
each = 1e3 * sum(kept) / len(kept) / ROUND
print(f"loss {shown:.5f}, test {test_loss:.4f}, {100 * right:.1f} % right; {each:.5f} ms per epoch")
