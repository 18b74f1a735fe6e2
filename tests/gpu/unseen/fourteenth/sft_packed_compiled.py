"""Fine-tune a language model on conversations, packed into rows without padding; compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
ROWS, BATCH, LENGTH, WORDS, WIDTH, HEADS, GROUPS, INNER, LAYERS = (
    (8, 2, 16, 48, 16, 2, 1, 32, 2) if TINY else (512, 8, 2048, 32_000, 1536, 24, 6, 4096, 12)
)
HEAD = WIDTH // HEADS
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
backend = "inductor" if low else "aot_eager"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * GROUPS * HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([WIDTH, GROUPS * HEAD, GROUPS * HEAD], 2)
        q, k, v = (one.unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (q, k, v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * up)


class Head(nn.Module):
    """The loss of the next word, whose logits are nowhere else."""

    def __init__(self):
        super().__init__()
        self.norm, self.words = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.words(self.norm(x)).flatten(0, 1).float(), labels.flatten())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), Head()
        angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(HEAD // 2) / (HEAD // 2))
        kind = torch.bfloat16 if low else torch.float32
        self.register_buffer("cos", angles.cos().to(kind), persistent=False)
        self.register_buffer("sin", angles.sin().to(kind), persistent=False)

    def forward(self, words, labels):
        x = self.words(words)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(x, labels)


def packed():
    """Conversations one after the other, cut into rows of the same length."""
    talks, length = [], 0
    generator = torch.Generator().manual_seed(0)
    while length < ROWS * LENGTH + 1:
        size = int(torch.randint(LENGTH // 16, LENGTH // 2, (1,), generator=generator))
        talk = (torch.rand(size, generator=generator) ** 3 * (WORDS - 3)).long() + 3
        talk[0], talk[-1] = 1, 2
        talks.append(talk)
        length += size
    row = torch.cat(talks)[: ROWS * LENGTH + 1].to(device)
    return row[:-1].view(ROWS, LENGTH), row[1:].view(ROWS, LENGTH)


def main():
    words, labels = packed()
    with device:
        model = Model()
    for part in [*model.blocks, model.head]:
        part.compile(backend=backend, dynamic=False)
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-5, betas=(0.9, 0.95), fused=low)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 20))
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        some = torch.randint(ROWS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(words[some], labels[some])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
