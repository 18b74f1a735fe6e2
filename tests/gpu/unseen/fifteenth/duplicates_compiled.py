"""Which questions ask the same? An encoder learns pairs against all others of a batch, compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
ASKED, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (20, 4, 8, 64, 32, 1, 16) if TINY else (20_000, 384, 64, 30_528, 768, 12, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """The mean of what the words of a question become, of length one."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, words):
        x = self.norm(self.words(words) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(1).float(), dim=1)


def questions():
    """Pairs that have half of their words in common, on the device, all of one length."""
    one = (VOCAB ** torch.rand(ASKED, LENGTH, device=device)).long().clamp(max=VOCAB - 1)
    two = (VOCAB ** torch.rand(ASKED, LENGTH, device=device)).long().clamp(max=VOCAB - 1)
    two = torch.where(torch.rand(ASKED, LENGTH, device=device) < 0.5, one, two)
    return torch.stack([one, two], 1)


def main():
    pairs = questions()
    with device:
        model = Encoder()
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50))
    own = torch.arange(BATCH, device=device)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = pairs[torch.randint(ASKED, (BATCH,), device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            one, two = model(chosen.flatten(0, 1)).view(BATCH, 2, WIDE).unbind(1)
        scores = 20 * one @ two.T
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
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
