"""A music transformer on notes as events: compiled blocks, and a watch on what they do to their stream."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
BATCH, LENGTH, VOCAB, WIDTH, HEADS, LAYERS = (2, 16, 60, 16, 2, 2) if TINY else (12, 512, 388, 512, 8, 12)
SHOW = 50
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def performances(count):
    """Events of played notes: a pitch begins, time goes on, a pitch ends; themes come again."""
    themes = torch.randint(VOCAB, (32, 64))
    order = torch.randint(32, (count, LENGTH // 64 + 1))
    played = themes[order].flatten(1)[:, : LENGTH + 1].clone()
    wrong = torch.rand(played.shape) < 0.1
    played[wrong] = torch.randint(VOCAB, (int(wrong.sum()),))
    return played.to(device)


class Watch:
    """Figures of a block's stream, averaged over steps: its norm, its peak, how much of it is large."""

    def __init__(self):
        self.figures = {}

    def note(self, name, value):
        old = self.figures.get(name, 0.0)
        self.figures[name] = 0.98 * old + 0.02 * value

    def table(self):
        return sum(self.figures.values()) / max(len(self.figures), 1)


class Block(nn.Module):
    def __init__(self, watch, depth):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("figures", torch.zeros(3), persistent=False)
        self.watch, self.names = watch, [f"{depth}/{what}" for what in ("rms", "peak", "large")]

    @torch.compiler.disable  # it reads numbers, which cannot be compiled
    def observe(self, x):
        x = x.detach().float()
        rms = x.pow(2).mean().sqrt().item()
        self.watch.note(self.names[0], rms)
        self.watch.note(self.names[1], x.abs().max().item())
        self.watch.note(self.names[2], (x.abs() > 4).float().mean().item())

    def attend(self, x, bias):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))
        return x + self.proj(y.transpose(1, 2).reshape(b, n, WIDTH))

    def forward(self, x, bias):
        x = self.attend(x, bias)
        if "figures-on-device" in FIX:
            y = x.detach().float()
            now = torch.stack([y.pow(2).mean().sqrt(), y.abs().max(), (y.abs() > 4).float().mean()])
            self.figures.copy_(0.98 * self.figures + 0.02 * now)
        else:
            self.observe(x)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MusicTransformer(nn.Module):
    def __init__(self, watch):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(watch, depth) for depth in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        place = torch.arange(LENGTH, dtype=torch.float32)
        distance = place[:, None] - place
        slopes = 2.0 ** -(1 + torch.arange(HEADS) * 7 / max(HEADS - 1, 1))[:, None, None]
        bias = (-slopes * distance).masked_fill(distance < 0, float("-inf"))
        self.register_buffer("bias", bias[None], persistent=False)

    def forward(self, ids):
        x = self.embed(ids) * math.sqrt(WIDTH)
        for block in self.blocks:
            x = block(x, self.bias)
        return self.head(self.norm(x))


watch = Watch()
model = MusicTransformer(watch).to(device)
for block in model.blocks:
    block.compile(backend="inductor" if device.type == "cuda" else "aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.98), fused=device.type == "cuda")
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 100))
corpus = performances(32 * BATCH)
times, shown = [], 0.0
for step in range(STEPS):
    began = time.perf_counter()
    rows = torch.randint(len(corpus), (BATCH,)).to(device)
    events = corpus[rows]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(events[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), events[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if "loss-rarely" not in FIX or step % SHOW == 0 or step == STEPS - 1:
        shown = loss.item()
    times.append(time.perf_counter() - began)
    if step % SHOW == 0:
        if "figures-on-device" in FIX:
            figures = torch.stack([block.figures for block in model.blocks]).cpu()
            for block, own in zip(model.blocks, figures.tolist(), strict=True):
                watch.figures |= dict(zip(block.names, own, strict=True))
        print(f"step {step}: loss {shown:.4f}, mean of figures {watch.table():.4f}")
kept = times[min(STEPS // 2, 12) :]
print(f"loss {shown:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
