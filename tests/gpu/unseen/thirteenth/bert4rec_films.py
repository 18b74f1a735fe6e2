"""Which film is missing? A transformer over what people watched, of which a part is masked."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
PEOPLE, ITEMS, BATCH, LENGTH, WIDE, LAYERS, HEAD = (
    (16, 60, 4, 10, 32, 1, 16) if TINY else (20_000, 40_000, 128, 200, 256, 2, 64)
)
MASKED, RATE = ITEMS + 1, 0.15  # 0 is padding
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + F.dropout(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), 0.1)
        return x + F.dropout(self.mlp(self.norm2(x)), 0.1)


class BERT4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(ITEMS + 2, WIDE), nn.Embedding(LENGTH, WIDE)
        nn.init.normal_(self.items.weight, std=0.02)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDE)
        self.out = nn.Linear(WIDE, ITEMS + 1)

    def hidden(self, items):
        return self.norm(self.layers(F.dropout(self.items(items) + self.places.weight, 0.1)))

    def forward(self, items, labels):
        x = self.hidden(items)
        if "masked-places" in FIX:
            there = labels > 0
            return F.cross_entropy(self.out(x[there]).float(), labels[there])
        logits = self.out(x)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=0)


def histories():
    """Whoever watches a film watches the next ones of its kind."""
    kinds = torch.randint(1, ITEMS // 2, (PEOPLE, 1), device=device)
    return kinds + torch.randint(0, ITEMS // 4, (PEOPLE, LENGTH), device=device)


def mask(items):
    hidden = torch.rand(items.shape, device=device) < RATE
    labels = torch.where(hidden, items, 0)
    drawn = torch.rand(items.shape, device=device)
    other = torch.randint(1, ITEMS + 1, items.shape, device=device)
    changed = torch.where(drawn < 0.8, MASKED, torch.where(drawn < 0.9, other, items))
    return torch.where(hidden, changed, items), labels


def main():
    watched = histories()
    with device:
        model = BERT4Rec()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=low)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(PEOPLE, (BATCH,), device=device)
        items, labels = mask(watched[chosen])
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(items, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
