"""What comes next for a person? A compiled transformer over the last things, with shared negatives."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
PEOPLE, ITEMS, BATCH, LENGTH, WIDE, LAYERS, HEAD, WRONG = (
    (16, 60, 4, 8, 32, 1, 16, 8) if TINY else (16_384, 20_000, 128, 256, 512, 8, 64, 2048)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(ITEMS, WIDE), nn.Embedding(LENGTH, WIDE)
        nn.init.normal_(self.items.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)

    def forward(self, things):
        x = self.items(things) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def sampled_softmax(x, right, wrong):
    """What comes next, against things that are drawn for all."""
    x = x.to(right.dtype)
    scores = torch.cat([(x * right).sum(-1, keepdim=True), x @ wrong.T], -1).float()
    return (scores.logsumexp(-1) - scores[..., 0]).mean()


def watched():
    """Each thing leads to one of ten, mostly."""
    things = [torch.randint(ITEMS, (PEOPLE,), device=device)]
    for _ in range(LENGTH):
        things.append((things[-1] * 31 + torch.randint(10, (PEOPLE,), device=device)) % ITEMS)
    return torch.stack(things, 1)


def main():
    things = watched()
    with device:
        model = Recommender()
    loss_of = sampled_softmax
    if low:
        for block in model.blocks:
            block.compile(dynamic=False)
        loss_of = torch.compile(sampled_softmax, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=low)
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = things[torch.randint(PEOPLE, (BATCH,), device=device)]
        wrong = torch.randint(ITEMS, (WRONG,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            x = model(batch[:, :-1])
            right, negatives = model.items(batch[:, 1:]), model.items(wrong)
            if low:
                right, negatives = right.bfloat16(), negatives.bfloat16()
            loss = loss_of(x, right, negatives)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
