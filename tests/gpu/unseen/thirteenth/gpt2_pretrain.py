"""A language model of the size of GPT-2, its 50257 tokens, from the beginning."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
TOKENS, BATCH, LENGTH, VOCAB, WIDE, LAYERS, HEAD = (
    (400, 2, 16, 53, 32, 1, 16) if TINY else (4_000_000, 12, 1024, 50_257, 768, 12, 64)
)
ROWS = -(-VOCAB // 64) * 64 if "padded-vocabulary" in FIX else VOCAB
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        for one in (self.out, self.down):
            nn.init.normal_(one.weight, std=0.02 / (2 * LAYERS) ** 0.5)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        if ROWS > VOCAB:  # tokens that there are not, which never get a chance
            self.words.weight = nn.Parameter(F.pad(self.words.weight.detach(), (0, 0, 0, ROWS - VOCAB)))
        bias = torch.zeros(ROWS)
        bias[VOCAB:] = float("-inf")
        self.register_buffer("bias", bias if ROWS > VOCAB else None, persistent=False)

    def forward(self, words, targets):
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight, self.bias)  # tied to the embedding
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def corpus():
    """Texts of words of which some are frequent, each followed by what likes to follow it."""
    drawn = (VOCAB ** torch.rand(TOKENS, device=device)).long().clamp(max=VOCAB - 1)
    follows = torch.rand(TOKENS - 1, device=device) < 0.5
    drawn[1:] = torch.where(follows, (drawn[:-1] * 7 + 3) % VOCAB, drawn[1:])
    return drawn


def groups(model):
    """Matrices and tables decay, all else does not."""
    parameters = list(model.parameters())
    return [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]


def main():
    texts, ahead = corpus(), torch.arange(LENGTH + 1, device=device)
    with device:
        model = GPT()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(groups(model), lr=6e-4, betas=(0.9, 0.95), fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 200))
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        starts = torch.randint(TOKENS - LENGTH - 1, (BATCH, 1), device=device)
        part = texts[starts + ahead]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(part[:, :-1], part[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
