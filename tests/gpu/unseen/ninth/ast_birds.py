"""Which birds sing? An audio spectrogram transformer on overlapping patches of ten seconds of sound."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
WARM = min(STEPS // 2, 5)
SOUNDS, BATCH, BINS, FRAMES, BIRDS, WIDTH, HEADS, LAYERS = (
    (8, 2, 32, 48, 7, 16, 2, 2) if TINY else (256, 16, 128, 1024, 264, 384, 6, 12)
)
PATCH, STRIDE = 16, 10
PLACES = ((BINS - PATCH) // STRIDE + 1) * ((FRAMES - PATCH) // STRIDE + 1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = (WIDTH // HEADS) ** -0.5
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, places, width = x.shape
        qkv = self.qkv(x).reshape(batch, places, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if "fused" in FIX:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attention = (q @ k.transpose(-2, -1)) * self.scale
            attention = attention.softmax(dim=-1)
            x = attention @ v
        return self.proj(x.transpose(1, 2).reshape(batch, places, width))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SpectrogramTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, STRIDE)
        self.tokens = nn.Parameter(0.02 * torch.randn(1, 2, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, PLACES + 2, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BIRDS))

    def forward(self, x):
        x = self.patches(x[:, None]).flatten(2).transpose(1, 2)
        x = torch.cat([self.tokens.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, :2].mean(1))


def batches(sounds, labels):
    """Pairs of sounds mixed, as in the paper, for ever."""
    generator = torch.Generator().manual_seed(1)
    while True:
        first, second = torch.randint(0, SOUNDS, (2, BATCH), generator=generator).to(device)
        share = torch.rand(BATCH, generator=generator).to(device)[:, None]
        mixed = share[..., None] * sounds[first] + (1 - share[..., None]) * sounds[second]
        yield mixed, share * labels[first] + (1 - share) * labels[second]


sounds = torch.randn(SOUNDS, BINS, FRAMES, device=device)
labels = (torch.rand(SOUNDS, BIRDS, device=device) < 0.02).float()
model = SpectrogramTransformer().to(device)
optimizer = torch.optim.Adam(
    model.parameters(), lr=1e-4, weight_decay=5e-7, betas=(0.95, 0.999), fused=device.type == "cuda"
)
data, seen, shown = batches(sounds, labels), [], 0.0
for step in range(STEPS):
    if step == WARM:
        began = clock()
    x, y = next(data)
    with torch.autocast(device.type, torch.bfloat16):
        logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    likely = torch.sigmoid(logits.detach().float())
    seen.append(likely if "results-rarely" in FIX else likely.cpu())
    if "results-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        shown = loss.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
mean = torch.cat(seen).mean().item()
print(f"loss {shown:.5f}, {mean:.4f} on average; {each:.3f} ms per step")
