"""A flow around a cylinder: the lattice Boltzmann method in two dimensions, compiled."""

import math
import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 1500))
WARM = min(STEPS // 2, 20)
HEIGHT, WIDTH = (24, 48) if TINY else (8192, 8192)
CHECKED = 500 if "checked-rarely" in FIX else 50
DRAWN = 5000 if "drawn-rarely" in FIX else 250
SPEED, REYNOLDS = 0.06, 220.0
DIRECTIONS = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
WEIGHTS = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
OPPOSITE = [0, 3, 4, 1, 2, 7, 8, 5, 6]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def equilibrium(density, along, across):
    """What each of nine directions has where collisions change nothing."""
    square = 1.5 * (along * along + across * across)
    found = []
    for (x, y), weight in zip(DIRECTIONS, WEIGHTS, strict=True):
        towards = 3 * (x * along + y * across)
        found.append(weight * density * (1 + towards + 0.5 * towards * towards - square))
    return found


def moments(parts):
    """Density and velocity."""
    density = parts[0] + parts[1] + parts[2] + parts[3] + parts[4] + parts[5] + parts[6] + parts[7] + parts[8]
    along = (parts[1] - parts[3] + parts[5] - parts[6] - parts[7] + parts[8]) / density
    across = (parts[2] - parts[4] + parts[5] + parts[6] - parts[7] - parts[8]) / density
    return density, along, across


def advance(parts, solid, omega):
    """Stream, bounce back from what is solid, collide: nine fields are read and nine written."""
    streamed = [torch.roll(f, (y, x), (0, 1)) for f, (x, y) in zip(parts, DIRECTIONS, strict=True)]
    calm = equilibrium(*moments(streamed))
    return [
        torch.where(solid, streamed[OPPOSITE[i]], streamed[i] + omega * (calm[i] - streamed[i]))
        for i in range(9)
    ]


def picture(parts):
    """How the flow turns, at every sixteenth place, for the film."""
    _, along, across = moments([f[::16, ::16] for f in parts])
    turning = torch.roll(across, -1, 1) - torch.roll(across, 1, 1)
    return (turning - torch.roll(along, -1, 0) + torch.roll(along, 1, 0)).cpu()


if device.type == "cuda":
    advance = torch.compile(advance, dynamic=False)
radius = HEIGHT // 9
y, x = torch.meshgrid(torch.arange(HEIGHT, device=device), torch.arange(WIDTH, device=device), indexing="ij")
solid = (x - WIDTH // 4) ** 2 + (y - HEIGHT // 2) ** 2 < radius**2
omega = 1 / (3 * SPEED * radius / REYNOLDS + 0.5)
along = SPEED * (1 + 1e-4 * torch.sin(2 * math.pi * y / (HEIGHT - 1)))
parts = [f.contiguous() for f in equilibrium(torch.ones_like(along), along, torch.zeros_like(along))]
del x, y, along
film, density = [], 0.0
with torch.inference_mode():
    for step in range(STEPS):
        if step == WARM:
            began = clock()
        parts = advance(parts, solid, omega)
        if step % CHECKED == 0 or step == STEPS - 1:
            density = sum(float(f.mean()) for f in parts)
            if not math.isfinite(density):
                raise SystemExit(f"step {step}: the flow is not stable")
        if step % DRAWN == 0:
            film.append(picture(parts))
each = 1e3 * (clock() - began) / (STEPS - WARM)
rate = HEIGHT * WIDTH / each / 1e3
print(f"density {density:.6f}, {len(film)} pictures, {rate:.0f} million places a second")
print(f"{each:.4f} ms per step")
