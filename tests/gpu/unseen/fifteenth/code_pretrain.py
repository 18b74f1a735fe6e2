"""A language model of source code, pieces of 4096 tokens that are cut out of one long text."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 50))
TOKENS, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (400, 2, 16, 64, 32, 2, 16) if TINY else (4_000_000, 4, 4096, 49_152, 768, 12, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE), Attention()
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def allowed(there, dtype):
    """What each token may look at: those before it that are there, as numbers that are added to scores."""
    if "causal-flag" in FIX:
        return None
    length = there.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=there.device).tril()
    seen = before[None, None] & there[:, None, None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=there.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, words, there):
        x = self.words(words) + self.places.weight
        mask = allowed(there, torch.bfloat16 if low else x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.norm(x), self.words.weight)  # tied to the embedding


def source():
    """Names that come again and again, and what follows them."""
    drawn = (VOCAB ** torch.rand(TOKENS, device=device)).long().clamp(max=VOCAB - 1)
    follows = torch.rand(TOKENS - 1, device=device) < 0.6
    drawn[1:] = torch.where(follows, (drawn[:-1] * 5 + 17) % VOCAB, drawn[1:])
    return drawn


def batches(text):
    """Pieces of one length, so every token is there."""
    ahead = torch.arange(LENGTH + 1, device=device)
    while True:
        part = text[torch.randint(TOKENS - LENGTH - 1, (BATCH, 1), device=device) + ahead]
        there = torch.ones(BATCH, LENGTH, dtype=torch.bool, device=device)
        yield {"input_ids": part[:, :-1], "labels": part[:, 1:], "attention_mask": there}


def main():
    loader = batches(source())
    with device:
        model = Coder()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 100))
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = next(loader)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(batch["input_ids"], batch["attention_mask"])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
