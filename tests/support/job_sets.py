"""Which simulated jobs are tried (see ``job_simulator``): a list by which constants were chosen, and others
drawn by chance, which judge them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from job_simulator import Fault, Job, cost

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
    """Forty without a fault, then those with one. Constants were chosen on these."""
    return [*_healthy(), *_faulty()]


def _healthy() -> list[Job]:
    """By how noisy kernels and hosts are, and by how much is moved."""
    found: list[Job] = []
    for at in range(40):
        base = BASES[at % len(BASES)]
        kind = at // len(BASES)
        found.append(
            replace(
                base, seed=100 + at, noise=(0.01, 0.03, 0.05)[kind % 3],
                stalls=(0, 0, 150, 400, 900, 1500)[kind], moves=(1.0, 2.5, 0.5)[at % 3],
                varies=(0.003, 0.006)[at % 2], steps=(4, 4, 3)[at % 3],
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


COSTS = 0.03  # of a step: what costs less need not be found


def drawn(seed: int, healthy: int = 20, faulty: int = 60) -> Iterator[Job]:
    """As many jobs without a fault, then with one that costs something: sizes, noise and faults by chance."""
    chance = random.Random(seed)
    for _ in range(healthy):
        yield _any(chance, chance.choice(BASES))
    found = 0
    while found < faulty:
        base = BASES[found % len(BASES)]
        job = _any(chance, base)
        job = replace(job, stalls=min(job.stalls, 200.0), fault=_fault(chance, job))
        if cost(job) >= COSTS:
            found += 1
            yield job


def _any(chance: random.Random, base: Job) -> Job:
    sizes = {"ddp": (2, 4, 8, 16), "fsdp": (2, 4, 8, 16), "hsdp": (8, 16), "experts": (4, 8, 16)}
    return replace(
        base,
        data=chance.choice(sizes.get(base.way, (base.data,))),
        steps=chance.choice((3, 4, 4, 6)),
        layers=chance.choice((4, 6, 8)),
        moves=chance.uniform(0.3, 3.0),
        noise=chance.uniform(0.005, 0.04),
        stalls=chance.choice((0.0, 0.0, 100.0, 300.0, 1000.0)),
        varies=chance.uniform(0.001, 0.006),
        seed=chance.randrange(1000, 1_000_000),
    )


def _fault(chance: random.Random, job: Job) -> Fault:
    rank = chance.randrange(job.ranks)
    hosts = [
        tuple(other for other in range(job.ranks) if job.host(other) == host)
        for host in range(job.host(job.ranks - 1) + 1)
    ]
    host = chance.choice(hosts)
    # Of two hosts at the most one can be slow, of a job on one host none.
    several = [(rank,), (rank,), *([host] if len(hosts) > 1 else [])]
    what = chance.choice(("device", "kernel", "stall", "loader", "host", "sync", "link"))
    if what == "link":
        return _slow_link(chance, job, hosts) or Fault("device", (rank,), chance.uniform(1.06, 1.5))
    if what in ("device", "host"):
        times = chance.uniform(1.06, 1.5) if what == "device" else HOSTS[job.name] * chance.uniform(0.8, 1.5)
        return Fault(what, chance.choice(several), times)
    low, high = {"kernel": (1.3, 3.0), "stall": (1500, 8000), "loader": (2000, 9000), "sync": (1500, 6000)}[
        what
    ]
    if what == "loader" and job.way == "pipeline":
        rank %= job.data * job.tensor  # the first stage's
    return Fault(what, (rank,), chance.uniform(low, high))


def _slow_link(chance: random.Random, job: Job, hosts: list[tuple[int, ...]]) -> Fault | None:
    if job.way == "hsdp":
        ranks = chance.choice((chance.choice(hosts), (chance.randrange(job.ranks),)))
    elif job.way == "tensor":
        ranks = chance.choice(((0, 1, 2, 3), (4, 5, 6, 7), (chance.randrange(8),)))
    elif job.tensor > 1:
        first = 2 * chance.randrange(4)
        ranks = (first, first + 1)
    else:
        return None
    return Fault("link", ranks, chance.uniform(2.0, 8.0))
