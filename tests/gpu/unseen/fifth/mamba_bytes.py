"""A small Mamba on bytes, after the paper: projections, a short convolution, the scan in plain torch."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 8))
BATCH, LENGTH, MODEL, STATE, LAYERS, VOCAB = (2, 12, 16, 4, 2, 64) if TINY else (4, 256, 512, 16, 4, 256)
INNER, RANK, CONV = 2 * MODEL, math.ceil(MODEL / 16), 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MambaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(MODEL, 2 * INNER, bias=False)
        self.conv1d = nn.Conv1d(INNER, INNER, CONV, groups=INNER, padding=CONV - 1)
        self.x_proj = nn.Linear(INNER, RANK + 2 * STATE, bias=False)
        self.dt_proj = nn.Linear(RANK, INNER)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, STATE + 1).float().repeat(INNER, 1)))
        self.D = nn.Parameter(torch.ones(INNER))
        self.out_proj = nn.Linear(INNER, MODEL, bias=False)

    def forward(self, x):
        length = x.shape[1]
        x, res = self.in_proj(x).split([INNER, INNER], -1)
        x = self.conv1d(x.transpose(1, 2))[:, :, :length].transpose(1, 2)
        x = F.silu(x)
        y = self.ssm(x)
        return self.out_proj(y * F.silu(res))

    def ssm(self, x):
        A = -torch.exp(self.A_log.float())
        delta, B, C = self.x_proj(x).split([RANK, STATE, STATE], -1)
        delta = F.softplus(self.dt_proj(delta))
        return self.selective_scan(x, delta, A, B, C, self.D.float())

    def selective_scan(self, u, delta, A, B, C, D):
        b, length, d_in = u.shape
        n = A.shape[1]
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x = torch.zeros((b, d_in, n), device=deltaA.device)
        ys = []
        if "unbind" in FIX:
            for a, bu, c in zip(deltaA.unbind(1), deltaB_u.unbind(1), C.unbind(1), strict=True):
                x = a * x + bu
                ys.append(torch.einsum("bdn,bn->bd", x, c))
        else:
            for i in range(length):
                x = deltaA[:, i] * x + deltaB_u[:, i]
                y = torch.einsum("bdn,bn->bd", x, C[:, i, :])
                ys.append(y)
        y = torch.stack(ys, dim=1)
        return y + u * D


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer, self.norm = MambaBlock(), RMSNorm(MODEL)

    def forward(self, x):
        return self.mixer(self.norm(x)) + x


class Mamba(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, MODEL)
        self.layers = nn.ModuleList(ResidualBlock() for _ in range(LAYERS))
        self.norm_f = RMSNorm(MODEL)
        self.lm_head = nn.Linear(MODEL, VOCAB, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.lm_head.weight = self.embedding.weight

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm_f(x))


def text(size):
    """Bytes that come back after a while, so that there is something to learn."""
    words = torch.randint(0, VOCAB, (200, 7))
    return words[torch.randint(0, 200, (size // 7 + 1,))].flatten()[:size]


data = text(20_000 if TINY else 2_000_000)
model = Mamba().to(device)
decay = [p for p in model.parameters() if p.dim() > 1]
other = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": other}], lr=1e-3)
losses, times, START = [], [], min(STEPS // 2, 3)
for step in range(STEPS):
    began = time.perf_counter()
    starts = torch.randint(0, len(data) - LENGTH - 1, (BATCH,))
    batch = torch.stack([data[s : s + LENGTH + 1] for s in starts.tolist()]).to(device)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if "loss-rarely" not in FIX or step % 10 == 9 or step in (START - 1, STEPS - 1):
        losses.append(loss.item())
    times.append(time.perf_counter() - began)
    if step % 10 == 0 and losses:
        print(f"step {step}: loss {losses[-1]:.4f}")
kept = times[START:]
print(f"loss {losses[-1]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms/step")
