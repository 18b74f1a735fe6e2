"""Galaxies without labels: two views of one should mean the same, to a network and to one that follows it."""

import copy
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
GALAXIES, BATCH, SIZE, SEEN, WIDE, DEPTHS, LEAVE = (
    (40, 6, 24, 16, 8, (1, 1), 16) if TINY else (8000, 128, 160, 128, 64, (2, 2, 2, 2), 256)
)
BLUR = 5  # how wide the filter is
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
random.seed(0)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
            nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave),
        )  # fmt: skip
        self.short = nn.Identity()
        if stride > 1 or enter != leave:
            self.short = nn.Sequential(nn.Conv2d(enter, leave, 1, stride, bias=False), nn.BatchNorm2d(leave))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def mlp(enter, leave):
    wide = 4 * leave
    return nn.Sequential(nn.Linear(enter, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, leave))


def encoder():
    layers, enter = [nn.Conv2d(3, WIDE, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDE), nn.ReLU()], WIDE
    for i, depth in enumerate(DEPTHS):
        for j in range(depth):
            layers.append(Block(enter, WIDE << i, 2 if i and not j else 1))
            enter = WIDE << i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), mlp(enter, LEAVE))


def drawn():
    """How a view is turned, scaled, moved and mirrored, how bright and sharp it is."""
    turn, scale = random.uniform(0, 2 * math.pi), random.uniform(0.5, 1.0)
    mirror = random.choice((-1, 1))
    cos, sin = scale * math.cos(turn), scale * math.sin(turn)
    moves = [random.uniform(-0.3, 0.3) for _ in range(2)]
    theta = [[mirror * cos, -sin, moves[0]], [mirror * sin, cos, moves[1]]]
    return theta, random.uniform(0.6, 1.4), random.uniform(0.8, 1.2), random.uniform(0.1, 1.5)


class Augment:
    """A view of one galaxy."""

    def __init__(self):
        self.at = torch.arange(BLUR, device=device) - BLUR // 2

    def __call__(self, image):
        theta, bright, contrast, sigma = drawn()
        theta = torch.tensor([theta], device=device)
        grid = F.affine_grid(theta, (1, 3, SEEN, SEEN), align_corners=False)
        view = F.grid_sample(image[None].float() / 255, grid, padding_mode="reflection", align_corners=False)
        view = (view - view.mean()) * contrast + view.mean()
        view = (view * bright).clamp(0, 1)
        kernel = torch.exp(-0.5 * (self.at / sigma) ** 2)
        kernel = (kernel / kernel.sum()).expand(3, 1, 1, BLUR)
        view = F.conv2d(view, kernel, padding=(0, BLUR // 2), groups=3)
        view = F.conv2d(view, kernel.transpose(2, 3), padding=(BLUR // 2, 0), groups=3)
        return ((view - 0.5) / 0.25)[0]

    def together(self, images):
        """Views of many galaxies, drawn as one after the other would be."""
        theta, *others = zip(*(drawn() for _ in images), strict=True)
        bright, contrast, sigma = torch.tensor(others, device=device)[:, :, None, None, None]
        grid = F.affine_grid(
            torch.tensor(theta, device=device), (len(images), 3, SEEN, SEEN), align_corners=False
        )
        views = F.grid_sample(images.float() / 255, grid, padding_mode="reflection", align_corners=False)
        mean = views.mean((1, 2, 3), keepdim=True)
        views = (((views - mean) * contrast + mean) * bright).clamp(0, 1)
        kernel = torch.exp(-0.5 * (self.at / sigma) ** 2)
        kernel = (kernel / kernel.sum(3, keepdim=True)).repeat_interleave(3, 0)
        views = views.flatten(0, 1)[None]
        views = F.conv2d(views, kernel, padding=(0, BLUR // 2), groups=len(kernel))
        views = F.conv2d(views, kernel.transpose(2, 3), padding=(BLUR // 2, 0), groups=len(kernel))
        return (views[0].unflatten(0, (-1, 3)) - 0.5) / 0.25


def galaxies():
    """Ellipses of light with some noise, as bytes on the device."""
    at = torch.linspace(-1, 1, SIZE, device=device)
    turn, long, flat, red = torch.rand(4, GALAXIES, 1, 1, device=device)
    across, down = at * torch.cos(3 * turn) + at[:, None] * torch.sin(3 * turn), at[:, None] - at * turn
    light = torch.exp(-(across / (0.1 + long)).square() - (down / (0.05 + long * flat)).square())
    light = torch.stack([light * red, light * (1 - 0.5 * red), light], 1)
    return (255 * (0.9 * light + 0.1 * torch.rand_like(light))).to(torch.uint8)


def main():
    have, augment = galaxies(), Augment()
    online = encoder().to(device, memory_format=torch.channels_last)
    target, predictor = copy.deepcopy(online).requires_grad_(False), mlp(LEAVE, LEAVE).to(device)
    learned = [*online.parameters(), *predictor.parameters()]
    optimizer = torch.optim.SGD(learned, lr=0.05, momentum=0.9, weight_decay=1e-4)
    lead, began, shown = min(STEPS // 2, 6), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        images = have[torch.randint(GALAXIES, (BATCH,), device=device)]
        if "views-together" in FIX:
            views = [augment.together(images) for _ in range(2)]
        else:
            views = [torch.stack([augment(image) for image in images]) for _ in range(2)]
        views = [view.contiguous(memory_format=torch.channels_last) for view in views]
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            said = [predictor(online(view)) for view in views]
            with torch.no_grad():
                meant = [target(view) for view in views]
        loss = sum(
            2 - 2 * F.cosine_similarity(a.float(), b.float()).mean()
            for a, b in zip(said, meant[::-1], strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 0.01)
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.5f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.6f}; {each:.3f} ms per step")


main()
