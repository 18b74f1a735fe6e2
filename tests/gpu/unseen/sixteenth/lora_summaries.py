"""Adapters on a language model that is loaded as its authors saved it, trained on texts with summaries."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))
PIECES, LENGTH, WIDE, LAYERS, HEAD, INNER, VOCABULARY, RANK, ACCUMULATE = (
    (1, 16, 32, 1, 16, 64, 64, 4, 2) if TINY else (2, 512, 2048, 16, 128, 5632, 32_000, 16, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class LoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + 2.0 * self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDE, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = (
            nn.Embedding(VOCABULARY, WIDE),
            nn.ModuleList(Layer() for _ in range(LAYERS)),
        )
        self.norm, self.head = nn.RMSNorm(WIDE), nn.Linear(WIDE, VOCABULARY, bias=False)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def adapted(model):
    """Freeze a model and put adapters on queries and values."""
    model.requires_grad_(False)
    if "base-in-bfloat16" in FIX and low:
        for part in model.modules():
            if isinstance(part, nn.Linear):
                part.to(torch.bfloat16)
    for layer in model.layers:
        layer.q, layer.v = LoRA(layer.q), LoRA(layer.v)
    return model


def pieces():
    """Texts whose last quarter is the summary, which alone has labels."""
    words = torch.randint(VOCABULARY // 4, (PIECES, LENGTH + 1), device=device) * 4
    labels = words[:, 1:].clone()
    labels[:, : 3 * LENGTH // 4] = -100
    return words[:, :-1], labels


def main():
    with device:
        model = adapted(Model())
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        total = torch.zeros((), device=device)
        for _ in range(ACCUMULATE):
            words, labels = pieces()
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                logits = model(words)
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten()) / ACCUMULATE
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = total.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
