"""Maxwell's equations around an antenna, by differences in time and space, on a grid in three dimensions."""

import math
import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 300))
NX, NY, NZ, PERIOD, EDGE = (12, 12, 10, 8, 2) if TINY else (256, 256, 256, 20, 16)
COURANT = 0.99 / math.sqrt(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def curl_e(e):
    """Of the electric field, between the points of the grid."""
    curl = torch.zeros_like(e)
    curl[:, :-1, :, 0] += e[:, 1:, :, 2] - e[:, :-1, :, 2]
    curl[:, :, :-1, 0] -= e[:, :, 1:, 1] - e[:, :, :-1, 1]
    curl[:, :, :-1, 1] += e[:, :, 1:, 0] - e[:, :, :-1, 0]
    curl[:-1, :, :, 1] -= e[1:, :, :, 2] - e[:-1, :, :, 2]
    curl[:-1, :, :, 2] += e[1:, :, :, 1] - e[:-1, :, :, 1]
    curl[:, :-1, :, 2] -= e[:, 1:, :, 0] - e[:, :-1, :, 0]
    return curl


def curl_h(h):
    """Of the magnetic field, at the points."""
    curl = torch.zeros_like(h)
    curl[:, 1:, :, 0] += h[:, 1:, :, 2] - h[:, :-1, :, 2]
    curl[:, :, 1:, 0] -= h[:, :, 1:, 1] - h[:, :, :-1, 1]
    curl[:, :, 1:, 1] += h[:, :, 1:, 0] - h[:, :, :-1, 0]
    curl[1:, :, :, 1] -= h[1:, :, :, 2] - h[:-1, :, :, 2]
    curl[1:, :, :, 2] += h[1:, :, :, 1] - h[:-1, :, :, 1]
    curl[:, 1:, :, 2] -= h[:, 1:, :, 0] - h[:, :-1, :, 0]
    return curl


def next_e(e, h, inverse_permittivity, fading):
    return (e + COURANT * inverse_permittivity * curl_h(h)) * fading


def next_h(e, h, inverse_permeability, fading):
    return (h - COURANT * inverse_permeability * curl_e(e)) * fading


if "compiled" in FIX:
    next_e, next_h = (torch.compile(one, dynamic=False) for one in (next_e, next_h))


class PointSource:
    def __init__(self, place):
        self.place = (*place, 2)

    def update_e(self, grid):
        grid.e[self.place] += math.sin(2 * math.pi * grid.passed / PERIOD)


class Detector:
    """What arrives at a place."""

    def __init__(self, place):
        self.place, self.seen = (*place, 2), []
        self.every = 20 if "detector-rarely" in FIX else 1

    def detect(self, grid):
        if grid.passed % self.every == 0:
            self.seen.append(grid.e[self.place].item())


class Grid:
    def __init__(self):
        self.e = torch.zeros(NX, NY, NZ, 3, device=device)
        self.h = torch.zeros_like(self.e)
        self.inverse_permittivity = torch.ones_like(self.e)
        self.inverse_permeability = torch.ones_like(self.e)
        self.fading, self.passed, self.sources, self.detectors = self.edges(), 0, [], []

    @staticmethod
    def edges():
        """Waves fade near the edges of the grid, of which none comes back."""
        fading = torch.ones(1, device=device)
        for size, shape in ((NX, (-1, 1, 1, 1)), (NY, (1, -1, 1, 1)), (NZ, (1, 1, -1, 1))):
            at = torch.arange(size, device=device)
            deep = (EDGE - torch.minimum(at, size - 1 - at)).clamp(min=0) / EDGE
            fading = fading * (1 - 0.3 * deep.pow(3)).view(shape)
        return fading

    def add_block(self, place, permittivity):
        self.inverse_permittivity[place] = 1 / permittivity

    def step(self):
        self.e = next_e(self.e, self.h, self.inverse_permittivity, self.fading)
        for source in self.sources:
            source.update_e(self)
        self.h = next_h(self.e, self.h, self.inverse_permeability, self.fading)
        for detector in self.detectors:
            detector.detect(self)
        self.passed += 1


@torch.no_grad()
def main():
    grid = Grid()
    grid.sources.append(PointSource((NX // 3, NY // 2, NZ // 2)))
    grid.detectors.append(Detector((NX // 2, NY // 2, NZ // 2)))
    grid.add_block((slice(NX // 2 + 1, NX // 2 + 3), slice(NY // 4, 3 * NY // 4)), 4.0)
    lead, began = min(STEPS // 2, 8), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        grid.step()
        if step % 100 == 0:
            print(f"step {step}: {grid.detectors[0].seen[-1]:.3e} at the detector")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    energy = (grid.e.square().sum() + grid.h.square().sum()).item()
    print(f"energy {energy:.6g}; {each:.3f} ms per step")


main()
