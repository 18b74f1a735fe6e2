"""Pictures as few numbers: an autoencoder whose code is rounded four times, each time what is left of it."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, SIDE, WIDE, CODE, CODES, ROUNDS = (
    (8, 2, 32, 8, 4, 12, 2) if TINY else (256, 32, 256, 128, 64, 8192, 4)
)
DECAY, LEAST = 0.99, 1e-5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Quantizer(nn.Module):
    """The nearest of many vectors, which are means of what is near them."""

    def __init__(self):
        super().__init__()
        vectors = 0.2 * torch.randn(CODES, CODE)
        self.register_buffer("vectors", vectors)
        self.register_buffer("sizes", torch.ones(CODES))
        self.register_buffer("sums", vectors.clone())

    @torch.no_grad()
    def average(self, counts, sums):
        self.sizes.mul_(DECAY).add_(counts, alpha=1 - DECAY)
        self.sums.mul_(DECAY).add_(sums, alpha=1 - DECAY)
        total = self.sizes.sum()
        sizes = (self.sizes + LEAST) / (total + CODES * LEAST) * total
        self.vectors.copy_(self.sums / sizes[:, None])

    def forward(self, x):
        with torch.no_grad():
            distances = (
                x.square().sum(1, keepdim=True) + self.vectors.square().sum(1) - 2 * x @ self.vectors.T
            )
            nearest = distances.argmin(1)
            if "looked-up" in FIX:
                found = self.vectors[nearest]
                counts = torch.bincount(nearest, minlength=CODES).to(x.dtype)
                sums = torch.zeros_like(self.vectors).index_add_(0, nearest, x)
                share = counts / len(x)
            else:
                chosen = torch.zeros(len(x), CODES, device=x.device)
                chosen.scatter_(1, nearest[:, None], 1)
                found = chosen @ self.vectors
                counts, sums = chosen.sum(0), chosen.T @ x
                share = chosen.mean(0)
        if self.training:
            self.average(counts, sums)
        return found, F.mse_loss(x, found), torch.exp(-(share * (share + 1e-10).log()).sum())


class Residual(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(min(8, wide), wide), nn.Conv2d(wide, wide, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(min(8, wide), wide), nn.Conv2d(wide, wide, 3, 1, 1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(y)))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        down, up, wide = [nn.Conv2d(3, WIDE // 2, 4, 2, 1)], [], WIDE // 2
        for _ in range(2):
            down += [Residual(wide), nn.SiLU(), nn.Conv2d(wide, WIDE, 4, 2, 1)]
            wide = WIDE
        self.down = nn.Sequential(*down, Residual(wide), Residual(wide), nn.Conv2d(wide, CODE, 1))
        up = [nn.Conv2d(CODE, wide, 3, 1, 1), Residual(wide), Residual(wide)]
        for out in (WIDE, WIDE // 2):
            up += [nn.ConvTranspose2d(wide, out, 4, 2, 1), Residual(out), nn.SiLU()]
            wide = out
        self.up = nn.Sequential(*up, nn.ConvTranspose2d(wide, 3, 4, 2, 1))
        self.rounds = nn.ModuleList(Quantizer() for _ in range(ROUNDS))

    def forward(self, images):
        x = self.down(images)
        with torch.autocast(device.type, enabled=False):
            code = x.float().permute(0, 2, 3, 1)
            left = code.flatten(0, 2)
            total, losses, used = torch.zeros_like(left), [], []
            for quantizer in self.rounds:
                found, loss, perplexity = quantizer(left)
                left, total = left - found, total + found
                losses.append(loss)
                used.append(perplexity)
            total = code + (total.view_as(code) - code).detach()
            total = total.permute(0, 3, 1, 2)
        return self.up(total), torch.stack(losses).mean(), torch.stack(used)


def tiles():
    """Patches of colours of several sizes."""
    coarse = [torch.rand(SIZE, 3, side, side, device=device) for side in (4, SIDE // 8)]
    images = sum(F.interpolate(one, size=(SIDE, SIDE), mode="bilinear") for one in coarse) - 1
    return images.to(memory_format=torch.channels_last)


def main():
    images = tiles()
    with device:
        model = Autoencoder().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.5, 0.9), fused=low)
    lead, began, shown, used = min(STEPS // 2, 5), 0.0, 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = images[torch.randint(SIZE, (BATCH,), device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            again, commitment, perplexities = model(batch)
        loss = F.l1_loss(again.float(), batch) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, used = loss.item(), perplexities.tolist()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, used {used[0]:.1f} to {used[-1]:.1f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, used {used[0]:.2f} to {used[-1]:.2f}; {each:.3f} ms per step")


main()
