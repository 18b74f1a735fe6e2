"""Names in long texts: an encoder in half precision, whose layers are compiled, learns to mark them."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, LENGTH, VOCAB, TAGS, WIDE, LAYERS, HEAD = (
    (8, 2, 12, 60, 5, 32, 2, 16) if TINY else (512, 16, 512, 50_264, 9, 768, 12, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


def bounded(x):
    """What went beyond the largest number comes back."""
    limit = torch.finfo(x.dtype).max - 1000
    if "no-branches" in FIX:
        return torch.clamp(x, -limit, limit)
    if torch.isinf(x).any() or torch.isnan(x).any():
        x = torch.clamp(x, -limit, limit)
    return x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def forward(self, x):
        q, k, v = (one(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        x = bounded(self.norm1(x + self.attend(x)))
        return bounded(self.norm2(x + self.down(F.gelu(self.up(x)))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDE, TAGS)

    def forward(self, words, tags):
        x = self.norm(self.words(words) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), tags.flatten())


def articles():
    """Some words are names, whose kind the word before them says."""
    words = torch.randint(3, VOCAB, (SIZE, LENGTH), device=device)
    names = words % 10 == 0
    kinds = 1 + words.roll(1, 1) % (TAGS - 1)
    return words, torch.where(names, kinds, 0)


def main():
    words, tags = articles()
    with device:
        model = Tagger()
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=low)
    scaler = torch.amp.GradScaler(device.type, enabled=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 100))
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.float16, enabled=low):
            loss = model(words[chosen], tags[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
