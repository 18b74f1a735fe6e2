"""Harvest activations of a language model, learn a sparse dictionary of them, judge it: one job."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # of the dictionary's training
WIDTH, HEADS, LAYERS, VOCAB, LENGTH, TEXTS, PASSES, FEATURES, BATCH = (
    (16, 2, 2, 50, 16, 4, 3, 64, 32) if TINY else (1024, 16, 8, 32_000, 256, 32, 24, 16_384, 4096)
)
SPARSITY, DEAD_AFTER = 4e-4, 1000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Up to the layer that is looked at."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, ids):
        return self.blocks(self.embed(ids) + self.place.weight)


class SparseAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.Parameter(F.normalize(torch.randn(FEATURES, WIDTH), dim=1))
        self.encoder = nn.Parameter(2 * WIDTH / FEATURES * self.decoder.detach().T)
        self.encoder_bias, self.bias = nn.Parameter(torch.zeros(FEATURES)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("idle", torch.zeros(FEATURES, dtype=torch.long))

    def forward(self, x):
        features = F.relu((x - self.bias) @ self.encoder + self.encoder_bias)
        return features, features @ self.decoder + self.bias

    @torch.no_grad()
    def project_gradient(self):
        """Directions of the dictionary keep their length: no gradient along them."""
        along = (self.decoder.grad * self.decoder).sum(1, keepdim=True)
        self.decoder.grad.sub_(along * self.decoder)

    @torch.no_grad()
    def normalise(self):
        self.decoder.div_(self.decoder.norm(dim=1, keepdim=True))


@torch.no_grad()
def harvest(model):
    """Phase one: activations of all words, in bfloat16."""
    kept = []
    for _ in range(PASSES):
        ids = torch.randint(VOCAB, (TEXTS, LENGTH)) ** 2 // VOCAB
        with torch.autocast(device.type, torch.bfloat16):
            kept.append(model(ids.to(device)).flatten(0, 1).to(torch.bfloat16))
    activations = torch.cat(kept)
    return activations / activations.float().norm(dim=1).mean() * WIDTH**0.5


class Log:
    """What is shown of the training: error, sparsity, features that never fire."""

    def __init__(self):
        self.rows = []

    def add(self, step, **figures):
        if "metrics-rarely" in FIX and step % 10 and step != STEPS - 1:
            return
        self.rows.append({name: value.item() for name, value in figures.items()})
        if step % 50 == 0:
            print(
                f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in self.rows[-1].items())
            )


def learn(sae, activations):
    """Phase two: the dictionary."""
    optimizer = torch.optim.Adam(sae.parameters(), lr=2e-4, betas=(0.9, 0.999))
    variance, log, times = activations.float().var(0).sum(), Log(), []
    for step in range(STEPS):
        began = time.perf_counter()
        x = activations[torch.randint(len(activations), (BATCH,)).to(device)].float()
        with torch.autocast(device.type, torch.bfloat16, enabled="bfloat16" in FIX):
            features, found = sae(x)
        error = (found.float() - x).pow(2).sum(1).mean()
        sparsity = features.float().sum(1).mean()
        loss = error + SPARSITY * sparsity
        optimizer.zero_grad()
        loss.backward()
        sae.project_gradient()
        optimizer.step()
        sae.normalise()
        with torch.no_grad():
            fired = (features > 0).any(0)
            sae.idle = torch.where(fired, 0, sae.idle + 1)
            log.add(
                step,
                loss=loss,
                unexplained=error / variance,
                l0=(features > 0).float().sum(1).mean(),
                dead=(sae.idle > DEAD_AFTER).float().mean(),
            )
        times.append(time.perf_counter() - began)
    return log, times


@torch.no_grad()
def judge(sae, activations):
    """Phase three: how much of new activations is explained."""
    errors, total, mean = 0.0, 0.0, activations.float().mean(0)
    for part in activations.split(BATCH)[:4]:
        x = part.float()
        errors, total = errors + (sae(x)[1] - x).pow(2).sum(), total + (x - mean).pow(2).sum()
    return 1 - float(errors / total)


activations = harvest(LanguageModel().to(device).eval())
print(f"{len(activations)} activations")
held_out, activations = activations[: 4 * BATCH], activations[BATCH:]
sae = SparseAutoencoder().to(device)
log, times = learn(sae, activations)
explained = judge(sae, held_out)
kept = times[min(STEPS // 2, 8) :]
print(f"loss {log.rows[-1]['loss']:.4f}, explained {explained:.4f}")
print(f"{1e3 * sum(kept) / len(kept):.3f} ms per step")
