"""Sprites taken apart by a variational autoencoder, compiled, whose capacity grows while it learns."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 24 if TINY else 400))
SPRITES, BATCH, SIZE, WIDE, LATENT = (100, 16, 16, 32, 4) if TINY else (30000, 16384, 64, 1200, 10)
GAMMA, MOST, UNTIL = 30.0, 25.0, 1e5  # capacity grows to this many nats, until this iteration
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class BetaVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIZE * SIZE, WIDE), nn.GELU(), nn.Linear(WIDE, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, WIDE), nn.GELU(), nn.Linear(WIDE, SIZE * SIZE))
        self.num_iter = 0

    def loss(self, x, logits, mean, log_var, capacity):
        drawn = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="none").sum(1).mean()
        mean, log_var = mean.float(), log_var.float()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return drawn + GAMMA * (kl - capacity).abs(), drawn, kl

    def forward(self, sprites, noise, capacity=None):
        if capacity is None:
            self.num_iter += 1
            capacity = min(MOST * self.num_iter / UNTIL, MOST)
        x = sprites.float() / 255
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + noise * (0.5 * log_var).exp()
        return self.loss(x, self.decoder(z), mean, log_var, capacity)


def sprites():
    """Squares and discs of many sizes in many places, as bytes on the device."""
    at = torch.arange(SIZE, device=device)
    y, x, size = torch.rand(3, SPRITES, 1, 1, device=device) * SIZE
    down, across = (at[:, None] - y).abs(), (at - x).abs()
    disc = torch.rand(SPRITES, 1, 1, device=device) < 0.5
    inside = (
        torch.where(disc, (down.square() + across.square()).sqrt(), torch.maximum(down, across))
        < size / 4 + 2
    )
    return (255 * inside).to(torch.uint8).flatten(1)


def main():
    have = sprites()
    model = BetaVAE().to(device)
    step_of = torch.compile(model, backend=backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=low)
    capacity = torch.zeros((), device=device) if "counted-outside" in FIX else None
    lead, began, shown = min(STEPS // 2, 16), 0.0, (0.0, 0.0, 0.0)
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = have[torch.randint(SPRITES, (BATCH,), device=device)]
        noise = torch.randn(BATCH, LATENT, device=device)
        if capacity is not None:
            capacity.fill_(min(MOST * (step + 1) / UNTIL, MOST))
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            losses = step_of(batch, noise, capacity)
        optimizer.zero_grad()
        losses[0].backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = [one.item() for one in losses]
        if step % 100 == 0:
            print(f"step {step}: loss {shown[0]:.3f}, drawn {shown[1]:.3f}, divergence {shown[2]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.5f}; {each:.3f} ms per step")


main()
