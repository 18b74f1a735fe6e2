"""A gas that is denser in one place: Euler's equations in two dimensions, by compiled finite volumes."""

import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))  # frames
HIGH, WIDE, MOMENTS, SMALLER = (24, 24, 3, 4) if TINY else (3072, 3072, 20, 8)
GAMMA, CFL = 1.4, 0.4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def pressure(u):
    return (GAMMA - 1) * (u[3] - 0.5 * (u[1].square() + u[2].square()) / u[0])


def flux(u, p, along):
    """What flows along one direction."""
    speed = u[along] / u[0]
    moved = [u[0] * speed, u[1] * speed, u[2] * speed, (u[3] + p) * speed]
    moved[along] = moved[along] + p
    return torch.stack(moved)


def between(u, p, sound, along, axis):
    """Rusanov's flux between each cell and the next."""
    near = (u[along] / u[0]).abs() + sound
    fastest = torch.maximum(near, near.roll(-1, axis))
    here = flux(u, p, along)
    there = here.roll(-1, axis + 1)
    return 0.5 * (here + there) - 0.5 * fastest * (u.roll(-1, axis + 1) - u)


def advance(u, dx):
    """The state after a step in time as long as the fastest wave lets it be, and how long that was."""
    p = pressure(u)
    sound = (GAMMA * p / u[0]).sqrt()
    fastest = ((u[1].square() + u[2].square()).sqrt() / u[0] + sound).max()
    dt = CFL * dx / fastest
    if "dt-on-device" not in FIX:
        dt = dt.item()
    x, y = between(u, p, sound, 1, 1), between(u, p, sound, 2, 0)
    change = x - x.roll(1, 2) + y - y.roll(1, 1)
    return u - dt / dx * change, dt


if device.type == "cuda":
    advance = torch.compile(advance)


def at_rest(dx):
    """Gas at rest, denser and under pressure in the middle, with some noise."""
    y, x = (dx * (torch.arange(size, device=device) + 0.5) for size in (HIGH, WIDE))
    inside = (x[None] - 0.5).square() + (y[:, None] - 0.5 * HIGH / WIDE).square() < 0.01
    density = torch.where(inside, 1.0, 0.125) * (1 + 0.01 * torch.rand(HIGH, WIDE, device=device))
    energy = torch.where(inside, 1.0, 0.1) / (GAMMA - 1)
    return torch.stack([density, torch.zeros_like(density), torch.zeros_like(density), energy])


def picture(u):
    """The density, smaller, for a film."""
    return torch.nn.functional.avg_pool2d(u[None, :1], SMALLER)[0, 0].half()


@torch.no_grad()
def main():
    dx = 1 / WIDE
    u, passed, film = at_rest(dx), 0.0, []
    lead, began = min(STEPS // 2, 8), 0.0
    for frame in range(STEPS):
        if frame == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        for _ in range(MOMENTS):
            u, dt = advance(u, dx)
            passed = passed + dt
        if "film-on-device" in FIX:
            film.append(picture(u))
        else:
            film.append(picture(u).cpu())
        if len(film) > 64:  # the older ones are written elsewhere
            film.pop(0)
        if frame % 50 == 0:
            print(f"frame {frame}: {float(passed):.6f} passed, densest {float(film[-1].max()):.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{float(passed):.6f} passed, mass {u[0].mean().item():.6f}; {each:.3f} ms per frame")


main()
