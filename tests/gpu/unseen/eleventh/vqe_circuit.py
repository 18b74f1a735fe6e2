"""The ground state of a chain of spins by a variational quantum circuit, simulated."""

import math
import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
QUBITS, LAYERS = (4, 2) if TINY else (13, 2)
FIELD = 0.8  # across the chain
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def rotation_y(angle):
    c, s = torch.cos(angle / 2), torch.sin(angle / 2)
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])]).to(torch.complex64)


def rotation_z(angle):
    phase = torch.polar(torch.ones_like(angle), angle / 2)
    return torch.diag(torch.stack([phase.conj(), phase]))


def signs():
    """What Z of each qubit is in each basis state."""
    states = torch.arange(2**QUBITS, device=device)
    bits = torch.stack([states >> (QUBITS - 1 - q) & 1 for q in range(QUBITS)])
    return (1 - 2 * bits).float()


class Circuit(nn.Module):
    """Layers of rotations of each qubit, with controlled phases between neighbours."""

    def __init__(self):
        super().__init__()
        self.angles = nn.Parameter(0.1 * torch.randn(LAYERS, QUBITS, 2))
        z = signs()
        both = sum(((1 - z[q]) * (1 - z[q + 1]) / 4).long() for q in range(QUBITS - 1))
        self.register_buffer("phases", (1 - 2 * (both % 2)).float())

    def expanded(self, gate, qubit):
        """The gate as a matrix that acts on all qubits."""
        before = torch.eye(2**qubit, dtype=torch.complex64, device=device)
        after = torch.eye(2 ** (QUBITS - 1 - qubit), dtype=torch.complex64, device=device)
        return torch.kron(torch.kron(before, gate), after)

    def apply_gate(self, state, gate, qubit):
        if "axes" in FIX:
            return torch.einsum("ab,xby->xay", gate, state.view(2**qubit, 2, -1)).reshape(-1)
        return self.expanded(gate, qubit) @ state

    def forward(self):
        state = torch.full((2**QUBITS,), 2 ** (-QUBITS / 2), dtype=torch.complex64, device=device)
        for layer in self.angles:
            for qubit in range(QUBITS):
                state = self.apply_gate(state, rotation_y(layer[qubit, 0]), qubit)
                state = self.apply_gate(state, rotation_z(layer[qubit, 1]), qubit)
            state = state * self.phases
        return state


class Ising:
    """Neighbours want to be alike, and a field wants to turn all of them."""

    def __init__(self):
        z = signs()
        self.diagonal = -(z[:-1] * z[1:]).sum(0)

    def energy(self, state):
        energy = (self.diagonal * (state.conj() * state).real).sum()
        for qubit in range(QUBITS):
            pair = state.view(2**qubit, 2, -1)
            energy = energy - FIELD * 2 * (pair[:, 0].conj() * pair[:, 1]).real.sum()
        return energy


def main():
    circuit, chain = Circuit().to(device), Ising()
    optimizer = torch.optim.Adam(circuit.parameters(), lr=0.02)
    lead, began, energies = min(STEPS // 2, 4), 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad()
        energy = chain.energy(circuit())
        energy.backward()
        optimizer.step()
        energies.append(energy.detach() if "energy-at-end" in FIX else energy.item())
        if step % 20 == 0:
            print(f"step {step}: {float(energies[-1]) / QUBITS:.4f} a spin")
    last = float(energies[-1])
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"energy {last:.5f}, {math.sqrt(abs(last)):.3f}; {each:.3f} ms per step")


main()
