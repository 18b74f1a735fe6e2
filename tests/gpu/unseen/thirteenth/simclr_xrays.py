"""Pictures of lungs without labels: two views of each, which a network is to find among all others."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
SIZE, BATCH, SIDE, WIDE, OUT, TEMPERATURE = (
    (16, 4, 16, 8, 16, 0.2) if TINY else (16_384, 1024, 32, 64, 128, 0.2)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, enter, wide, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.skip = nn.Identity() if stride == 1 and enter == wide else nn.Conv2d(enter, wide, 1, stride)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class Encoder(nn.Module):
    """A small ResNet and a head that is thrown away later."""

    def __init__(self):
        super().__init__()
        widths, blocks = [WIDE, WIDE, 2 * WIDE, 4 * WIDE, 8 * WIDE], []
        for i in range(4):
            blocks += [Block(widths[i], widths[i + 1], 1 + (i > 0)), Block(widths[i + 1], widths[i + 1], 1)]
        self.enter = nn.Sequential(nn.Conv2d(1, WIDE, 3, padding=1), nn.BatchNorm2d(WIDE), nn.ReLU())
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(8 * WIDE, 8 * WIDE), nn.ReLU(), nn.Linear(8 * WIDE, OUT))

    def forward(self, x):
        return self.head(self.blocks(self.enter(x)).mean((2, 3)))


class NTXent(nn.Module):
    def __init__(self):
        super().__init__()
        self.similarity = nn.CosineSimilarity(dim=-1)
        mates = torch.arange(2 * BATCH, device=device).roll(BATCH)
        self.register_buffer("mates", mates, persistent=False)
        self.register_buffer("self_mask", torch.eye(2 * BATCH, dtype=torch.bool, device=device))

    def forward(self, one, two):
        z = torch.cat([one, two])
        if "product" in FIX:
            unit = F.normalize(z, dim=1)
            found = unit @ unit.T
        else:
            found = self.similarity(z.unsqueeze(1), z.unsqueeze(0))
        logits = (found / TEMPERATURE).masked_fill(self.self_mask, float("-inf"))
        return F.cross_entropy(logits, self.mates), logits


def view(images):
    """Shifted, turned over, darker or lighter, with noise: on the device, all pictures at once."""
    count = len(images)
    turn = torch.zeros(count, 2, 3, device=device)
    turn[:, 0, 0] = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    scale = 0.5 + 0.5 * torch.rand(count, 2, device=device)
    turn[:, 0, 0] *= scale[:, 0]
    turn[:, 1, 1] = scale[:, 1]
    turn[:, :, 2] = (1 - scale) * (2 * torch.rand(count, 2, device=device) - 1)
    x = F.grid_sample(images, F.affine_grid(turn, images.shape, align_corners=False), align_corners=False)
    bright = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, device=device)
    return x * bright + 0.05 * torch.randn_like(x)


def main():
    images = F.interpolate(torch.rand(SIZE, 1, 8, 8, device=device), size=(SIDE, SIDE), mode="bilinear")
    with device:
        model = Encoder().to(memory_format=torch.channels_last)
    criterion = NTXent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4, fused=low)
    lead, began, shown, right = min(STEPS // 2, 5), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = images[torch.randint(SIZE, (BATCH,), device=device)]
        views = torch.cat([view(chosen), view(chosen)]).to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            z = model(views)
        loss, logits = criterion(*z.float().chunk(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = (logits.argmax(1) == criterion.mates).float().mean()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, right = loss.item(), hits.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, found {right:.3f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
