"""Which simulated jobs are tried (see ``job_simulator``)."""

from __future__ import annotations

from dataclasses import replace

from job_simulator import Fault, Job

DDP = Job("DDP", "ddp")
FSDP = Job("FSDP", "fsdp")
HSDP = Job("HSDP 2 × 4", "hsdp")
TENSOR = Job("TP 4 × DP 2", "tensor", data=2, tensor=4)
PIPELINE = Job("PP 4 × DP 2", "pipeline", stages=4, data=2, per_host=2)
CUBE = Job("PP 2 × DP 2 × TP 2", "pipeline", stages=2, data=2, tensor=2)
EXPERTS = Job("experts of 8", "experts")
BASES = (DDP, FSDP, HSDP, TENSOR, PIPELINE, CUBE, EXPERTS)
# How many times as long a slow host's calls take, so that its device waits for them.
HOSTS = dict(zip((base.name for base in BASES), (24.0, 17.0, 17.0, 22.0, 26.0, 24.0, 28.0), strict=True))


def jobs() -> list[Job]:
    """Forty without a fault, then those with one; seeds that are even may choose a constant, odd ones judge."""
    return [*_healthy(), *_faulty()]


def _healthy() -> list[Job]:
    """By how noisy kernels and hosts are, and by how much is moved."""
    found: list[Job] = []
    for at in range(40):
        base = BASES[at % len(BASES)]
        kind = at // len(BASES)
        found.append(
            replace(
                base, seed=100 + at, noise=(0.01, 0.03, 0.05)[kind % 3], stalls=(0, 0, 150, 400, 900, 1500)[kind],
                moves=(1.0, 2.5, 0.5)[at % 3], varies=(0.003, 0.006)[at % 2], steps=(4, 4, 3)[at % 3],
            )
        )  # fmt: skip
    return found


def _faulty() -> list[Job]:
    """Each sort of fault in each job that it costs something in."""
    found: list[Job] = []

    def add(base: Job, what: str, ranks: tuple[int, ...], times: float, **more: float) -> None:
        seed = len(found)
        fault = Fault(what, ranks, times)
        given = {"noise": (0.01, 0.02)[seed % 2], "stalls": (0.0, 100.0)[seed // 2 % 2]} | more
        found.append(replace(base, fault=fault, seed=seed, **given))

    for at, base in enumerate(BASES):
        add(base, "device", ((3 * at + 1) % 8,), 1.2)
        add(base, "device", ((5 * at + 2) % 8,), 1.12, moves=2.0)
        add(base, "kernel", ((at + 3) % 8,), 2.0)
        add(base, "stall", ((2 * at + 1) % 8,), 4000.0)
        add(base, "loader", ((at + 5) % 8 if base.way != "pipeline" else at % 2,), 5000.0)
        add(base, "host", ((3 * at + 2) % 8,), HOSTS[base.name])
    for base in (DDP, FSDP, TENSOR, EXPERTS, HSDP):
        add(base, "sync", (2,), 3000.0)
    # Hosts and stages.
    for base in (DDP, FSDP, HSDP, EXPERTS):
        add(base, "device", (4, 5, 6, 7), 1.2)
        add(base, "host", (0, 1, 2, 3), HOSTS[base.name])
    add(TENSOR, "device", (4, 5, 6, 7), 1.2)
    add(PIPELINE, "device", (2, 3), 1.25)
    add(PIPELINE, "device", (4, 5), 1.25)
    add(CUBE, "device", (0, 1, 2, 3), 1.25)
    # Links.
    add(HSDP, "link", (4, 5, 6, 7), 4.0)
    add(HSDP, "link", (0, 1, 2, 3), 3.0)
    add(HSDP, "link", (2,), 8.0)
    add(HSDP, "link", (5,), 8.0)
    add(TENSOR, "link", (0, 1, 2, 3), 5.0)
    add(TENSOR, "link", (3,), 4.0)
    add(TENSOR, "link", (6,), 4.0)
    add(CUBE, "link", (0, 1), 8.0)
    add(CUBE, "link", (4, 5), 8.0)
    add(replace(HSDP, data=16), "link", (8, 9, 10, 11), 4.0)
    return found
