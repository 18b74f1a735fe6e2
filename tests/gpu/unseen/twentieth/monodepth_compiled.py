"""How far away is a street? Depth learned from films alone, by a transformer whose blocks are compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
FILMS, BATCH, HIGH, LONG, PATCH, WIDE, LAYERS, HEAD, SCALES = (
    (6, 2, 32, 48, 8, 32, 2, 16, 3) if TINY else (48, 8, 320, 1024, 16, 512, 8, 64, 4)
)
FRAMES = 3  # what is looked at, before it and after it
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class DepthNet(nn.Module):
    """Disparity of the first frame at some sizes, and how the camera moved to each of the others."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDE, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(HIGH * LONG // PATCH**2, WIDE))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.heads = nn.ModuleList(nn.Linear(WIDE, (PATCH >> i) ** 2) for i in range(SCALES))
        self.pose = nn.Sequential(nn.Linear(2 * WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 6))

    def forward(self, frames):
        x = self.patches(frames.flatten(0, 1)).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).unflatten(0, (-1, FRAMES))
        first = x[:, 0].transpose(1, 2).unflatten(2, (HIGH // PATCH, LONG // PATCH))
        disparities = [
            F.pixel_shuffle(head(first.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), PATCH >> i).sigmoid()
            for i, head in enumerate(self.heads)
        ]
        seen = x.mean(2)
        poses = [self.pose(torch.cat([seen[:, 0], seen[:, k]], 1)) for k in range(1, FRAMES)]
        return disparities, poses


def photometric(pred, target):
    """How little two pictures are alike, for each pixel: SSIM and differences."""
    x, y = F.pad(pred, (1, 1, 1, 1), mode="reflect"), F.pad(target, (1, 1, 1, 1), mode="reflect")
    mean_x, mean_y = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    var_x = F.avg_pool2d(x * x, 3, 1) - mean_x * mean_x
    var_y = F.avg_pool2d(y * y, 3, 1) - mean_y * mean_y
    both = F.avg_pool2d(x * y, 3, 1) - mean_x * mean_y
    upper = (2 * mean_x * mean_y + 0.01**2) * (2 * both + 0.03**2)
    lower = (mean_x * mean_x + mean_y * mean_y + 0.01**2) * (var_x + var_y + 0.03**2)
    ssim = ((1 - upper / lower) / 2).clamp(0, 1)
    return 0.85 * ssim.mean(1, keepdim=True) + 0.15 * (pred - target).abs().mean(1, keepdim=True)


if "compiled-loss" in FIX:
    photometric = torch.compile(photometric, backend=backend, dynamic=False)


class Camera:
    def __init__(self):
        focal, middle = 0.6 * LONG, (LONG / 2, HIGH / 2)
        self.inner = torch.tensor([[focal, 0, middle[0]], [0, focal, middle[1]], [0, 0, 1]], device=device)
        y, x = torch.meshgrid(
            torch.arange(HIGH, device=device), torch.arange(LONG, device=device), indexing="ij"
        )
        pixels = torch.stack([x + 0.5, y + 0.5, torch.ones_like(x)]).flatten(1)
        self.rays = self.inner.inverse() @ pixels
        self.size = torch.tensor([LONG, HIGH], device=device)

    def warp(self, source, depth, pose):
        """The source as it looks from where the target was taken."""
        turn, move = 0.01 * pose[:, :3], 0.01 * pose[:, 3:]
        zero = torch.zeros_like(turn[:, 0])
        a, b, c = turn.unbind(1)
        turned = torch.stack([zero, -c, b, c, zero, -a, -b, a, zero], 1).unflatten(1, (3, 3))
        points = self.rays * depth.flatten(2)
        points = points + turned @ points + move[:, :, None]
        there = self.inner @ points
        places = there[:, :2] / (there[:, 2:] + 1e-7)
        grid = 2 * places.transpose(1, 2) / self.size - 1
        grid = grid.unflatten(1, (HIGH, LONG))
        return F.grid_sample(source, grid, padding_mode="border", align_corners=False)


def smoothness(disparity, image):
    """Depth may change where the picture does."""
    disparity = disparity / (disparity.mean((2, 3), keepdim=True) + 1e-7)
    across = disparity.diff(dim=3).abs() * torch.exp(-image.diff(dim=3).abs().mean(1, keepdim=True))
    down = disparity.diff(dim=2).abs() * torch.exp(-image.diff(dim=2).abs().mean(1, keepdim=True))
    return across.mean() + down.mean()


def objective(camera, frames, disparities, poses):
    target, sources, total, still = frames[:, 0], frames[:, 1:].unbind(1), 0.0, None
    for i, small in enumerate(disparities):
        small = small.float()
        whole = F.interpolate(small, (HIGH, LONG), mode="bilinear", align_corners=False) if i else small
        depth = 1 / (0.01 + 9.99 * whole)
        warped = [camera.warp(one, depth, pose.float()) for one, pose in zip(sources, poses, strict=True)]
        losses = [photometric(one, target) for one in warped]
        if still is None or "still-once" not in FIX:
            still = [photometric(one, target) for one in sources]
        for one in still:  # what does not move is left out; ties are broken by chance
            losses.append(one + 1e-5 * torch.randn_like(one))
        total = total + torch.cat(losses, 1).min(1).values.mean()
        image = F.avg_pool2d(target, 1 << i) if i else target
        total = total + 1e-3 * smoothness(small, image) / 2**i
    return total / SCALES


def films():
    """Pictures that move a little from frame to frame, on the device, as bytes."""
    coarse = torch.rand(FILMS, 3, HIGH // 8, LONG // 8 + 2, device=device)
    wide = F.interpolate(coarse, (HIGH, LONG + 16), mode="bicubic").clamp(0, 1)
    wide = (255 * wide).to(torch.uint8)
    return torch.stack([wide[..., 8 : 8 + LONG], wide[..., :LONG], wide[..., 16:]], 1)


def main():
    kept, camera = films(), Camera()
    with device:
        model = DepthNet()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=low)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        frames = kept[torch.randint(FILMS, (BATCH,), device=device)].float() / 255
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            disparities, poses = model(frames)
        loss = objective(camera, frames, disparities, poses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
