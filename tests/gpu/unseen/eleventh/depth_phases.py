"""How far is it? A vision transformer learns depth: epochs with a validation each, and a test at last."""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))  # of training
EPOCH, HELD, BATCH, SIDE, PATCH, WIDE, LAYERS, HEAD = (
    (2, 2, 2, 32, 16, 32, 1, 16) if TINY else (10, 6, 24, 256, 16, 768, 12, 64)
)
GRID = SIDE // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class DepthNet(nn.Module):
    """Patches, blocks, and a small head that makes a map of depths."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(3, WIDE, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, WIDE))
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDE)
        self.project, self.smooth = nn.Conv2d(WIDE, 128, 1), nn.Conv2d(128, 64, 3, padding=1)
        self.last = nn.Conv2d(64, 1, 3, padding=1)

    def forward(self, images):
        x = self.enter(images).flatten(2).transpose(1, 2) + self.places
        x = self.norm(self.blocks(x)).transpose(1, 2).unflatten(2, (GRID, GRID))
        x = F.relu(self.smooth(F.interpolate(self.project(x), scale_factor=2, mode="bilinear")))
        x = F.interpolate(self.last(x), scale_factor=PATCH // 2, mode="bilinear")
        return F.softplus(x.float())[:, 0] + 0.1


def scenes(count):
    """Rooms whose brightness falls with depth, on the device."""
    coarse = 1 + 4 * torch.rand(count, 1, 6, 6, device=device)
    depth = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")
    images = (2 / depth + 0.05 * torch.randn(count, 3, SIDE, SIDE, device=device)).clamp(0, 1)
    return images, depth[:, 0]


def silog(found, depth):
    """The scale of a scene counts little."""
    off = found.log() - depth.log()
    return (off.square().mean() - 0.85 * off.mean().square()).clamp(1e-8).sqrt()


class Job:
    def __init__(self):
        self.train_set, self.held, self.test_set = scenes(8 * BATCH), scenes(HELD * BATCH), scenes(BATCH)
        with device:
            self.model = DepthNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.shown, self.best = 0.0, float("inf")

    def train_step(self, step):
        images, depth = self.train_set
        chosen = torch.randint(len(images), (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            found = self.model(images[chosen])
        loss = silog(found, depth[chosen])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if "loss-rarely" not in FIX or step % EPOCH == 0:
            self.shown = loss.item()

    @torch.no_grad()
    def validate(self, data):
        self.model.eval()
        low = dtype == torch.bfloat16 and "validate-in-bf16" in FIX
        errors, near = [], []
        for images, depth in zip(*(one.split(BATCH) for one in data), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                found = self.model(images)
            errors.append(((found - depth).abs() / depth).mean())
            near.append((torch.maximum(found / depth, depth / found) < 1.25).float().mean())
        self.model.train()
        return torch.stack(errors).mean().item(), torch.stack(near).mean().item()


def main():
    job, ends = Job(), []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            job.train_step(step)
            if step % EPOCH == EPOCH - 1:
                error, near = job.validate(job.held)
                ends.append(time.perf_counter())
                print(f"epoch {len(ends)}: loss {job.shown:.4f}, error {error:.4f}, near {near:.3f}")
                job.best = min(job.best, error)
        torch.save(job.model.state_dict(), Path(folder, "last.pt"))
        error, near = job.validate(job.test_set)
    each = 1e3 * (ends[-1] - ends[0]) / ((len(ends) - 1) * EPOCH)
    print(f"loss {job.shown:.5f}, best {job.best:.5f}, test {error:.5f}")
    print(f"{each:.3f} ms per step with its share of validation")


main()
