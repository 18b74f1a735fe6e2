"""Molecular dynamics with a learned potential: neighbours, energy, its gradient, velocity Verlet."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
CELLS, WIDTH, RADIAL, LAYERS = (2, 8, 6, 2) if TINY else (6, 64, 32, 3)
LATTICE, CUTOFF, TIMESTEP, MASS = 5.4, 5.0, 2.0, 39.95
torch.set_default_dtype(torch.float64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Atoms:
    """Positions, numbers and velocities in a periodic box, all on the host."""

    def __init__(self):
        grid = np.stack(np.meshgrid(*[np.arange(CELLS)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
        basis = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
        self.positions = ((grid + basis).reshape(-1, 3)) * LATTICE
        self.positions += 0.05 * rng.standard_normal(self.positions.shape)
        self.velocities = 2e-3 * rng.standard_normal(self.positions.shape)
        self.numbers = rng.choice([10, 18], len(self.positions))
        self.cell = np.full(3, CELLS * LATTICE)
        self.calc = None

    def get_forces(self):
        return self.calc.calculate(self)["forces"]


def neighbour_list(positions, cell, cutoff):
    """Pairs of atoms that are nearer than the cutoff, with the shift of the second one's box."""
    vectors = positions[None, :, :] - positions[:, None, :]
    shifts = -np.round(vectors / cell) * cell
    distances = np.sqrt(((vectors + shifts) ** 2).sum(-1))
    np.fill_diagonal(distances, np.inf)
    i, j = np.nonzero(distances < cutoff)
    return i, j, shifts[i, j]


def neighbours_on_device(positions, cell, cutoff):
    vectors = positions[None, :, :] - positions[:, None, :]
    shifts = -torch.round(vectors / cell) * cell
    distances = (vectors + shifts).pow(2).sum(-1)
    distances.fill_diagonal_(torch.inf)
    i, j = (distances < cutoff**2).nonzero(as_tuple=True)
    return i, j, shifts[i, j]


def shifted_softplus(x):
    return F.softplus(x) - 0.6931471805599453


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.ModuleList([nn.Linear(RADIAL, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.inside = nn.Linear(WIDTH, WIDTH, bias=False)
        self.outside = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x, radial, cut, i, j):
        weights = self.filter[1](shifted_softplus(self.filter[0](radial))) * cut[:, None]
        messages = self.inside(x).index_select(0, j) * weights
        gathered = torch.zeros_like(x).index_add(0, i, messages)
        return x + self.outside[1](shifted_softplus(self.outside[0](gathered)))


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.interactions = nn.ModuleList(Interaction() for _ in range(LAYERS))
        self.readout = nn.ModuleList([nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2, 1)])
        self.register_buffer("centres", torch.linspace(0, CUTOFF, RADIAL))

    def forward(self, positions, numbers, i, j, shifts):
        distances = (positions.index_select(0, j) - positions.index_select(0, i) + shifts).norm(dim=1)
        cut = 0.5 * (torch.cos(torch.pi * distances / CUTOFF) + 1)
        radial = torch.exp(-10 / CUTOFF * (distances[:, None] - self.centres) ** 2)
        x = self.embedding(numbers)
        for interaction in self.interactions:
            x = interaction(x, radial, cut, i, j)
        repulsion = 0.01 * ((3.0 / distances) ** 6 * cut).sum()
        return 1e-3 * self.readout[1](shifted_softplus(self.readout[0](x))).sum() + repulsion


class Calculator:
    """What the integrator asks for energies and forces; numpy in, numpy out."""

    def __init__(self, model):
        if "float32" in FIX:
            torch.set_default_dtype(torch.float32)
        self.model = model.to(device, torch.get_default_dtype()).eval()
        for p in self.model.parameters():
            p.requires_grad_(False)

    def calculate(self, atoms):
        dtype = torch.get_default_dtype()
        positions = torch.tensor(atoms.positions, dtype=dtype, device=device)
        if "neighbours-on-device" in FIX:
            cell = torch.tensor(atoms.cell, dtype=dtype, device=device)
            i, j, shifts = neighbours_on_device(positions, cell, CUTOFF)
        else:
            i, j, shifts = neighbour_list(atoms.positions, atoms.cell, CUTOFF)
            i, j = torch.tensor(i, device=device), torch.tensor(j, device=device)
            shifts = torch.tensor(shifts, dtype=dtype, device=device)
        positions.requires_grad_(True)
        numbers = torch.tensor(atoms.numbers, device=device)
        energy = self.model(positions, numbers, i, j, shifts)
        forces = -torch.autograd.grad(energy, positions)[0]
        self.pairs = len(i)
        self.results = {
            "energy": energy.detach().cpu().item(),
            "forces": forces.detach().cpu().numpy().astype(np.float64),
        }
        return self.results


class VelocityVerlet:
    def __init__(self, atoms, timestep):
        self.atoms, self.dt, self.forces = atoms, timestep, None

    def step(self):
        atoms = self.atoms
        forces = atoms.get_forces() if self.forces is None else self.forces
        atoms.velocities += 0.5 * self.dt * forces / MASS
        atoms.positions += self.dt * atoms.velocities
        self.forces = atoms.get_forces()
        atoms.velocities += 0.5 * self.dt * self.forces / MASS

    def run(self, steps):
        for step in range(steps):
            began = time.time()
            self.step()
            times.append(time.time() - began)
            if step % 20 == 0:
                kinetic = 0.5 * MASS * (atoms.velocities**2).sum()
                print(
                    f"{step:6d} {atoms.calc.results['energy']:14.6f} {kinetic:12.6f} {atoms.calc.pairs} pairs"
                )


times: list[float] = []
atoms = Atoms()
atoms.calc = Calculator(Potential())
VelocityVerlet(atoms, TIMESTEP).run(STEPS)
kept = times[min(STEPS // 2, 8) :]
energy = atoms.calc.results["energy"]
print(f"{len(atoms.positions)} atoms, energy {energy:.6f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
