"""A small language model of many languages, and so of many words, trained from its beginning."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
TOKENS, BATCH, LENGTH, WIDE, LAYERS, HEAD, VOCABULARY = (
    (400, 2, 16, 32, 1, 16, 96) if TINY else (2_000_000, 4, 1024, 1024, 8, 64, 256_000)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate, self.up = (nn.Linear(WIDE, 4 * WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class Model(nn.Module):
    """The same table says what words mean and which word comes next."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDE), nn.Embedding(LENGTH, WIDE)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.RMSNorm(WIDE)

    def forward(self, words):
        x = self.norm(self.layers(self.words(words) + self.places.weight))
        return F.linear(x, self.words.weight)


def next_word_loss(logits, labels):
    """Each place foretells the word after it."""
    logits = logits.float()
    before, after = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
    return F.cross_entropy(before.view(-1, VOCABULARY), after.view(-1))


def main():
    text = (VOCABULARY * torch.rand(TOKENS, device=device) ** 6).long()  # few words are frequent
    with device:
        model = Model()
    loss_of = next_word_loss
    if "loss-compiled" in FIX:
        loss_of = torch.compile(next_word_loss, backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50))
    places = torch.arange(LENGTH, device=device)
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        words = text[torch.randint(TOKENS - LENGTH, (BATCH, 1), device=device) + places]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(words)
        loss = loss_of(logits, words)
        del logits
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
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
