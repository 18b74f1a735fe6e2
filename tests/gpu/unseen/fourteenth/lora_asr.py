"""Adapt a large speech model to one voice: low-rank adapters in its attention, letters by CTC."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, FRAMES, BANDS, WIDTH, HEADS, LAYERS, LETTERS, SPOKEN, RANK = (
    (8, 2, 32, 8, 16, 2, 2, 6, 5, 2) if TINY else (128, 16, 1000, 80, 1024, 16, 16, 32, 80, 8)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class LoRA(nn.Module):
    """A layer of the large model with a small one at its side."""

    def __init__(self, layer, alpha=16):
        super().__init__()
        self.layer, self.scale = layer, alpha / RANK
        self.lora_a = nn.Parameter(torch.randn(RANK, layer.in_features) / math.sqrt(layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x):
        return self.layer(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(BANDS, WIDTH, 3, 1, 1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.places = nn.Parameter(0.02 * torch.randn(FRAMES // 2, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.letters = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.letters(self.norm(x))


def add_adapters(model):
    for layer in model.layers:
        layer.attention.q_proj = LoRA(layer.attention.q_proj)
        layer.attention.v_proj = LoRA(layer.attention.v_proj)
    named = list(model.named_parameters())
    adapters = [one for name, one in named if "lora_" in name or name.startswith("letters")]
    if "base-frozen" in FIX:
        trained = {id(one) for one in adapters}
        for _, one in named:
            one.requires_grad_(id(one) in trained)
    print(f"{sum(one.numel() for one in adapters)} of {sum(one.numel() for _, one in named)} are trained")
    return adapters


def sentences():
    """Each letter has a band of its own, and is heard for a while."""
    letters = torch.randint(1, LETTERS, (SIZE, SPOKEN), device=device)
    heard = letters.repeat_interleave(FRAMES // SPOKEN + 1, 1)[:, :FRAMES]
    sound = torch.randn(SIZE, BANDS, FRAMES, device=device)
    sound.scatter_add_(1, (heard % BANDS)[:, None], torch.full((SIZE, 1, FRAMES), 4.0, device=device))
    return sound, letters


def main():
    sound, letters = sentences()
    with device:
        model = Listener()
        adapters = add_adapters(model)
    model.train()
    optimizer = torch.optim.AdamW(adapters, lr=3e-4, weight_decay=0.0, fused=low)
    frames = torch.full((BATCH,), FRAMES // 2, dtype=torch.long)
    spoken = torch.full((BATCH,), SPOKEN, dtype=torch.long)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(sound[chosen])
        likely = logits.float().log_softmax(2).transpose(0, 1)
        loss = F.ctc_loss(likely, letters[chosen], frames, spoken, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
