"""Queries from questions: adapters of a small language model are fine-tuned, gradients accumulate."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))  # of the optimizer
EXAMPLES, BATCH, LENGTH, WORDS, WIDE, LAYERS, HEAD, KEYS, INNER, RANK = (
    (12, 4, 12, 60, 32, 2, 16, 1, 64, 2) if TINY else (512, 16, 384, 32_000, 896, 12, 64, 2, 4864, 16)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)

per_device_train_batch_size = BATCH if "one-batch" in FIX else 1
gradient_accumulation_steps = BATCH // per_device_train_batch_size
logging_steps = 10 if "loss-rarely" in FIX else 1


class LoraLinear(nn.Module):
    """A frozen layer, and a narrow way around it."""

    def __init__(self, enter, leave, bias=False, alpha=32):
        super().__init__()
        self.base = nn.Linear(enter, leave, bias).requires_grad_(False)
        self.a, self.b = nn.Linear(enter, RANK, False), nn.Linear(RANK, leave, False)
        nn.init.kaiming_uniform_(self.a.weight, math.sqrt(5))
        nn.init.normal_(self.b.weight, 0, 0.002)
        self.scale = alpha / RANK

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * self.scale


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDE), requires_grad=False)

    def forward(self, x):
        return F.rms_norm(x, (WIDE,), self.weight, 1e-6)


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.o = LoraLinear(WIDE, WIDE, True), LoraLinear(WIDE, WIDE)
        self.k, self.v = LoraLinear(WIDE, KEYS * HEAD, True), LoraLinear(WIDE, KEYS * HEAD, True)
        self.gate, self.up = LoraLinear(WIDE, INNER), LoraLinear(WIDE, INNER)
        self.down = LoraLinear(INNER, WIDE)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE).requires_grad_(False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), Norm()
        angles = torch.outer(torch.arange(LENGTH), 1e6 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.words.weight).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def examples():
    """Questions with tables and queries, joined to texts of one length: what follows is a little likely."""
    words = torch.randint(WORDS, (EXAMPLES, LENGTH), device=device)
    words[:, 1::2] = (words[:, ::2] * 7 + 1) % (WORDS // 16)
    return words


def main():
    data = examples()
    with device:
        model = Model().to(dtype)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=device.type == "cuda")
    print(f"{sum(w.numel() for w in trained)} of {sum(w.numel() for w in model.parameters())} are trained")
    lead, began, shown = min(STEPS // 2, 3), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(EXAMPLES, (BATCH,), device=device)
        running = torch.zeros((), device=device)
        for micro in chosen.split(per_device_train_batch_size):
            loss = model(data[micro]) / gradient_accumulation_steps
            loss.backward()
            running += loss.detach()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % logging_steps == 0 or step == STEPS - 1:
            shown = running.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
