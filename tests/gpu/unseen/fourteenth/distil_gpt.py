"""Distil a language model: a small one learns from words, and from the chances that a larger one gives."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 50))
SIZE, BATCH, LENGTH, WORDS, LARGE, SMALL = (
    (8, 2, 12, 40, (24, 2, 2), (16, 2, 1)) if TINY else (256, 24, 512, 32_000, (1024, 16, 16), (768, 12, 6))
)
TEMPERATURE, SHARE = 2.0, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
backend = "inductor" if low else "aot_eager"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words) + self.places.weight
        return self.head(self.norm(self.blocks(x)))


def losses(logits, wanted, labels):
    """What is right, and how far the chances are from those of the large model."""
    logits, wanted = logits.flatten(0, 1).float(), wanted.flatten(0, 1).float()
    right = F.cross_entropy(logits, labels.flatten())
    likely = F.log_softmax(logits / TEMPERATURE, 1)
    chances = F.softmax(wanted / TEMPERATURE, 1)
    near = F.kl_div(likely, chances, reduction="batchmean") * TEMPERATURE**2
    return right, near


class Distillation:
    def __init__(self):
        with device:
            self.teacher, self.student = GPT(*LARGE).eval().requires_grad_(False), GPT(*SMALL)
        if low:
            self.teacher.to(torch.bfloat16)
        self.losses = losses
        if "compiled-loss" in FIX:
            self.losses = torch.compile(losses, backend=backend, dynamic=False)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=3e-4, fused=low)
        self.shown = 0.0, 0.0

    def step(self, number, words):
        given, labels = words[:, :-1], words[:, 1:]
        with torch.no_grad():
            wanted = self.teacher(given)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = self.student(given)
        right, near = self.losses(logits, wanted, labels)
        loss = SHARE * right + (1 - SHARE) * near
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        if "losses-rarely" not in FIX or number % 20 == 0 or number == STEPS - 1:
            self.shown = right.item(), near.item()


def main():
    distillation = Distillation()
    texts = (torch.rand(SIZE, LENGTH + 1, device=device) ** 3 * WORDS).long()
    lead, began = min(STEPS // 2, 5), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        distillation.step(step, texts[torch.randint(SIZE, (BATCH,), device=device)])
        if step % 20 == 0:
            print("step {}: words {:.4f}, chances {:.4f}".format(step, *distillation.shown))
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    right, near = distillation.shown
    print(f"words {right:.5f}, chances {near:.5f}; {each:.3f} ms per step")


main()
