"""Answers that people liked better: a language model learns them, against known likelihoods."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
PAIRS, BATCH, PROMPT, ANSWER, VOCAB, WIDE, LAYERS, HEAD = (
    (8, 2, 6, 6, 64, 32, 2, 16) if TINY else (256, 8, 384, 384, 32_768, 1536, 14, 128)
)
LENGTH, BETA = PROMPT + ANSWER, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype, backend = (torch.bfloat16, "inductor") if device.type == "cuda" else (torch.float32, "eager")
torch.manual_seed(0)


class PreferenceLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gated, self.down = nn.Linear(WIDE, 6 * WIDE, bias=False), nn.Linear(3 * WIDE, WIDE, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gated(self.norm2(x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * up)


class Chat(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(PreferenceLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDE), nn.Linear(WIDE, VOCAB, bias=False)

    def forward(self, words):
        """What is known before each word of the answers."""
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return x[:, PROMPT - 1 : -1]

    def ipo(self, x, answers, counts, reference):
        """Differences of mean likelihoods to the reference should be half of 1 / beta."""
        logits = self.head(self.norm(x)).float().flatten(0, 1)
        each = -F.cross_entropy(logits, answers.flatten(), reduction="none").view_as(answers)
        there = torch.arange(ANSWER, device=x.device) < counts[:, None]
        better, worse = ((each * there).sum(1) / counts - reference).chunk(2)
        return (better - worse - 0.5 / BETA).square().mean()


def conversations():
    """Pairs: words, how long answers are, and how likely another model found them."""
    words = torch.randint(2, VOCAB, (2, PAIRS, LENGTH), device=device)
    words[1, :, :PROMPT] = words[0, :, :PROMPT]
    counts = torch.randint(ANSWER * 3 // 4, ANSWER + 1, (2, PAIRS), device=device)
    return words, counts, -torch.rand(2, PAIRS, device=device) - 9


def main():
    words, counts, reference = conversations()
    with device:
        model = Chat().to(dtype)
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    ipo = torch.compile(model.ipo, backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(PAIRS, (BATCH,), device=device)
        batch = words[:, chosen].flatten(0, 1)
        x = model(batch)
        loss = ipo(x, batch[:, PROMPT:], counts[:, chosen].flatten(), reference[:, chosen].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
