"""What a cell is, from how often it reads each gene: a variational autoencoder of counts with many zeros."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))
CELLS, BATCH, GENES, HIDDEN, LATENT, TYPES, EPOCH = (
    (24, 8, 40, 16, 3, 3, 3) if TINY else (20_480, 4096, 8000, 256, 20, 12, 5)
)
EPS = 1e-8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "eager"
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def layer(enter, leave):
    return nn.Sequential(nn.Linear(enter, leave), nn.BatchNorm1d(leave), nn.ReLU())


def zinb(counts, mean, spread, missing):
    """Log-likelihood of counts: negative binomial, or zero because the reader missed them."""
    seen = F.softplus(-missing)
    log_spread, log_both = torch.log(spread + EPS), torch.log(spread + mean + EPS)
    at_zero = spread * (log_spread - log_both) - missing
    zero = F.softplus(at_zero) - seen
    other = (
        at_zero
        - seen
        + counts * (torch.log(mean + EPS) - log_both)
        + torch.lgamma(counts + spread)
        - torch.lgamma(spread)
        - torch.lgamma(counts + 1)
    )
    return (counts < EPS).float() * zero + (counts > EPS).float() * other


if "compiled-loss" in FIX:
    zinb = torch.compile(zinb, backend=backend, dynamic=False)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(layer(GENES, HIDDEN), layer(HIDDEN, HIDDEN))
        self.middle, self.log_var = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)
        self.decode = nn.Sequential(layer(LATENT, HIDDEN), layer(HIDDEN, HIDDEN))
        self.share, self.missing = nn.Linear(HIDDEN, GENES), nn.Linear(HIDDEN, GENES)
        self.spread = nn.Parameter(torch.randn(GENES))

    def forward(self, counts, weight):
        library = counts.sum(1, keepdim=True)
        x = self.encode(torch.log1p(counts))
        middle, log_var = self.middle(x), self.log_var(x)
        z = middle + torch.randn_like(middle) * torch.exp(0.5 * log_var)
        x = self.decode(z)
        mean = library * F.softmax(self.share(x), 1)
        likely = zinb(counts, mean, self.spread.exp(), self.missing(x)).sum(1)
        apart = 0.5 * (middle.square() + log_var.exp() - 1 - log_var).sum(1)
        return (weight * apart - likely).mean()


def cells():
    """Cells of some types, each of which reads some genes more often, on the device."""
    rates = torch.rand(TYPES, GENES, device=device).pow(4) * 6
    types = torch.randint(TYPES, (CELLS,), device=device)
    counts = torch.empty(CELLS, GENES, device=device, dtype=torch.uint8)
    for first in range(0, CELLS, BATCH):
        counts[first : first + BATCH] = torch.poisson(rates[types[first : first + BATCH]]).clamp(max=255)
    return counts


def main():
    counts = cells()
    with device:
        model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.01, fused=device.type == "cuda")
    lead, began, shown, order = min(STEPS // 2, 10), 0.0, 0.0, None
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % EPOCH == 0:
            order = torch.randperm(CELLS, device=device)
        chosen = order[step % EPOCH * BATCH : (step % EPOCH + 1) * BATCH]
        loss = model(counts[chosen].float(), min(1.0, (step + 1) / 400))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.4f}; {each:.3f} ms per step")


main()
