"""How hard is a passage to read? An encoder is tuned for it, its first layers more slowly than its last."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 140))
PASSAGES, WORDS, LONG, BATCH, WIDE, LAYERS, HEAD = (
    (16, 50, 8, 4, 32, 2, 16) if TINY else (2834, 30522, 256, 16, 768, 12, 64)
)
RATE, SLOWER, DECAY, WARM = 2e-5, 0.9, 0.01, 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.out, self.norm1 = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.norm2 = nn.LayerNorm(WIDE)

    def forward(self, x):
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(2, (-1, HEAD)).transpose(1, 2) for part in parts)
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LONG, WIDE)
        self.norm = nn.LayerNorm(WIDE)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.attend = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, 1))
        self.head = nn.Linear(WIDE, 1)

    def forward(self, words):
        x = self.norm(self.words(words) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return self.head((self.attend(x).softmax(1) * x).sum(1)).squeeze(1)


def rate_of(name):
    """What is near the words learns more slowly, what is near the answer as fast as may be."""
    if name.startswith("layers."):
        return RATE * SLOWER ** (LAYERS - 1 - int(name.split(".")[1]))
    return 5 * RATE if name.startswith(("attend.", "head.")) else RATE * SLOWER**LAYERS


def optimizer_groups(model):
    groups = []
    for name, weight in model.named_parameters():
        decay = 0.0 if name.endswith("bias") or "norm" in name else DECAY
        groups.append({"params": [weight], "lr": rate_of(name), "weight_decay": decay})
    if "groups-merged" not in FIX:
        return groups
    merged = {}
    for group in groups:
        kind = group["lr"], group["weight_decay"]
        merged.setdefault(kind, {**group, "params": []})["params"] += group["params"]
    return list(merged.values())


def main():
    words = torch.randint(WORDS, (PASSAGES, LONG), device=device)
    ease = words.float().mean(1)
    ease = (ease - ease.mean()) / ease.std()
    with device:
        model = Reader()
    optimizer = torch.optim.AdamW(optimizer_groups(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM, (STEPS - step) / STEPS)
    )
    lead, began, shown = min(STEPS // 2, 10), 0.0, 0.0
    order = torch.randperm(PASSAGES, device=device)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        at = step * BATCH % (PASSAGES - BATCH + 1)
        chosen = order[at : at + BATCH]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(words[chosen])
        loss = F.mse_loss(found.float(), ease[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: off by {shown**0.5:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
