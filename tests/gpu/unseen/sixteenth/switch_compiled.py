"""A language model whose layers have eight experts, one for each token; its layers are compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
TOKENS, BATCH, LENGTH, WIDE, LAYERS, HEAD, EXPERTS, VOCABULARY = (
    (500, 2, 12, 32, 2, 16, 4, 64) if TINY else (2_000_000, 8, 512, 512, 12, 64, 8, 16_384)
)
CAPACITY = int(1.25 * BATCH * LENGTH / EXPERTS)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Loads:
    """How many tokens each expert of each layer got, for the log."""

    def __init__(self):
        self.layers = []

    @torch.compiler.disable
    def note(self, counts):
        self.layers.append(counts.tolist())

    def worst(self):
        """The largest part of the tokens that any expert got; begins anew."""
        largest = max(max(counts) for counts in self.layers) / (BATCH * LENGTH)
        self.layers.clear()
        return largest


loads = Loads()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.router = nn.Linear(WIDE, EXPERTS, bias=False)
        self.up = nn.Parameter(WIDE**-0.5 * torch.randn(EXPERTS, WIDE, 4 * WIDE))
        self.down = nn.Parameter((4 * WIDE) ** -0.5 * torch.randn(EXPERTS, 4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        tokens = self.norm2(x).flatten(0, 1)
        chances = F.softmax(self.router(tokens).float(), dim=1)
        gate, expert = chances.max(1)
        chosen = F.one_hot(expert, EXPERTS)
        counts = chosen.sum(0)
        if "loads-on-device" not in FIX:
            loads.note(counts)
        balance = EXPERTS * (chances.mean(0) * counts / len(tokens)).sum()
        place = (chosen.cumsum(0) * chosen).sum(1) - 1
        slot = torch.where(
            place < CAPACITY, expert * CAPACITY + place, EXPERTS * CAPACITY
        )  # the last is thrown away
        rows = tokens.new_zeros(EXPERTS * CAPACITY + 1, WIDE).index_copy(0, slot, tokens)
        y = torch.bmm(F.gelu(torch.bmm(rows[:-1].unflatten(0, (EXPERTS, CAPACITY)), self.up)), self.down)
        y = F.pad(y.flatten(0, 1).type_as(x), (0, 0, 0, 1))[slot] * gate[:, None]
        return x + y.view_as(x), balance, counts


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDE), nn.Embedding(LENGTH, WIDE)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCABULARY, bias=False)

    def forward(self, words):
        x, balances, counts = self.words(words) + self.places.weight, [], []
        for layer in self.layers:
            x, balance, count = layer(x)
            balances.append(balance)
            counts.append(count)
        return self.head(self.norm(x)), torch.stack(balances).mean(), torch.stack(counts)


def main():
    text = torch.randint(VOCABULARY // 8, (TOKENS,), device=device) ** 2 % VOCABULARY
    with device:
        model = Model()
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=low)
    places = torch.arange(LENGTH + 1, device=device)
    lead, began, shown, worst = min(STEPS // 2, 8), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        piece = text[torch.randint(TOKENS - LENGTH, (BATCH, 1), device=device) + places]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits, balance, counts = model(piece[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten()) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shows = step % 20 == 0 or step == STEPS - 1
        if "loads-on-device" not in FIX:
            worst = loads.worst()
        elif shows:
            worst = counts.max().item() / (BATCH * LENGTH)
        if "loss-rarely" not in FIX or shows:
            shown = loss.item()
        if step % 40 == 0:
            print(f"step {step}: loss {shown:.4f}, largest load {worst:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, largest load {worst:.3f}; {each:.3f} ms per step")


main()
