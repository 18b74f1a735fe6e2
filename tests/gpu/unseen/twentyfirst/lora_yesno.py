"""Is an answer a good one? A language model learns to say yes or no, with adapters next to its weights."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
TEXTS, BATCH, LONGEST, WORDS, WIDE, LAYERS, HEAD, RANK = (
    (40, 4, 24, 90, 32, 2, 8, 2) if TINY else (4000, 16, 512, 151_936, 896, 24, 64, 16)
)
PAD, YES, NO, ALPHA = 0, 9, 11, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features, dtype=dtype) / RANK)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK, dtype=dtype))

    def forward(self, x):
        return self.base(x) + ALPHA * F.linear(F.linear(x, self.a), self.b)


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE, dtype=dtype), nn.RMSNorm(WIDE, dtype=dtype)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDE, WIDE, bias=False, dtype=dtype) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDE, 4 * WIDE, bias=False, dtype=dtype) for _ in range(2))
        self.down = nn.Linear(4 * WIDE, WIDE, bias=False, dtype=dtype)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDE, dtype=dtype)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDE, dtype=dtype)
        angles = torch.arange(LONGEST)[:, None] * 10000 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        self.register_buffer("cos", angles.cos().repeat(1, 2).to(dtype))
        self.register_buffer("sin", angles.sin().repeat(1, 2).to(dtype))
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens, places=None):
        """Logits of what comes next, after each token or after those at some places."""
        x, long = self.embed(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:long], self.sin[:long])
        x = self.norm(x)
        if places is not None:
            x = x[torch.arange(len(x), device=device), places][:, None]
        return F.linear(x, self.embed.weight).float()


def with_adapters(model):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("q", "k", "v", "o"):
            setattr(layer, name, LoraLinear(getattr(layer, name)))
    return model


def asked():
    """Questions with answers, each as long as it is; good ones have more of some words."""
    lengths = torch.randint(LONGEST * 3 // 4, LONGEST + 1, (TEXTS,), device=device)
    tokens = torch.randint(12, WORDS, (TEXTS, LONGEST), device=device)
    good = torch.rand(TEXTS, device=device) < 0.5
    some = torch.rand(TEXTS, LONGEST, device=device) < 0.1
    tokens[some & good[:, None]] = 12
    tokens[torch.arange(LONGEST, device=device) >= lengths[:, None]] = PAD
    return tokens, lengths, good


def main():
    tokens, lengths, good = asked()
    with device:
        model = with_adapters(CausalLM())
    learned = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in learned) / 1e6:.2f} million weights are learned")
    optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.randint(TEXTS, (BATCH,), device=device)
        last = lengths[rows] - 1
        if "last-only" in FIX:
            logits = model(tokens[rows], last)[:, 0]
        else:
            logits = model(tokens[rows])
            logits = logits[torch.arange(BATCH, device=device), last]
        yes_or_no = torch.stack([logits[:, NO], logits[:, YES]], 1)
        loss = F.cross_entropy(yes_or_no, good[rows].long())
        right = (yes_or_no.argmax(1) == good[rows]).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = (loss.item(), right.item())
        if step % 20 == 0:
            print(f"step {step}: loss {shown[0]:.4f}, {shown[1]:.0%} right")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.6f}, {shown[1]:.3f} right; {each:.3f} ms per step")


main()
