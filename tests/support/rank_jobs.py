"""Which sets of ranks are tried (see ``rank_sets``), and what should be said of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rank_sets import Fault, Job, Loss

CAUSES = {
    "kernel": "slow kernel", "clocks": "clocks", "work": "more work", "host": "host", "loader": "data loader",
    "sync": "synchronization", "compile": "recompilation", "experts": "more data",
}  # fmt: skip


EVERYWHERE = ("kernel", "clocks", "work", "host", "loader", "sync", "compile")


def jobs() -> list[Job]:
    """Every fault in four kinds of job, each recorded whole and in several broken ways."""
    hosts = ((0.0, 0.0), (5_000.0, 2e-5), (-12_000.0, -1e-5), (731.0, 5e-5))
    plain = Job("data parallel")
    kinds: list[Callable[[str, int], Job]] = [
        lambda kind, seed: replace(plain, fault=Fault(seed % 4, kind), seed=seed),
        lambda kind, seed: replace(
            plain, name="two hosts", fault=Fault(seed % 4, kind), ahead=hosts, seed=seed
        ),
        lambda kind, seed: Job(
            "tensor and data parallel", 8, 2, fault=Fault(seed % 8, kind), ahead=hosts, seed=seed
        ),
        lambda kind, seed: replace(
            plain, name="sharded", data=("_allgather_base", "_reduce_scatter_base", "broadcast"),
            fault=Fault(seed % 4, kind), ahead=hosts, seed=seed,
        ),
    ]  # fmt: skip
    whole = [
        make(kind, seed + 3 * index)
        for seed, kind in enumerate(EVERYWHERE)
        for index, make in enumerate(kinds)
    ]
    return [
        *whole,
        *_broken(kinds),
        *_other_ways(hosts),
        *(replace(make("none", 40 + i), fault=Fault()) for i, make in enumerate(kinds)),
    ]


def _broken(kinds: list[Callable[[str, int], Job]]) -> list[Job]:
    found: list[Job] = []
    for index, kind in enumerate(("kernel", "host", "loader", "clocks")):
        for make in kinds[index % 2 : index % 2 + 2]:
            job = make(kind, 20 + index)
            culprit = job.fault.rank or 0
            other = (culprit + 1) % job.ranks
            third = (culprit + 2) % job.ranks
            found += [
                replace(job, name=f"{job.name}, {what}", loss=loss)
                for what, loss in (
                    ("another rank missing", Loss(missing=(other,))),
                    ("the culprit missing", Loss(missing=(culprit,))),
                    ("another rank damaged", Loss(damaged=(other,))),
                    ("first collective lost", Loss(shifted=(other,))),
                    ("one lost in the middle, one repeated", Loss(holes=(third,), repeated=(other,))),
                )
            ]
    return found


def _other_ways(hosts: tuple[tuple[float, float], ...]) -> list[Job]:
    """Pipelines, experts and broadcasts, and recordings that do not begin together."""
    pipeline = Job("pipeline", data=("allreduce",), ahead=hosts, way="pipeline")
    batches = replace(pipeline, name="pipeline, in batches", way="batches")
    alone = Job("pipeline, sends and receives alone", data=(), way="pipeline")
    experts = Job("experts", ahead=hosts, way="experts")
    sent = Job("broadcasts", data=("broadcast", "broadcast"))
    faults = [
        *((pipeline, kind, 0 if kind == "loader" else at % 3) for at, kind in enumerate(EVERYWHERE)),
        *((batches, kind, 0 if kind == "loader" else at % 3) for at, kind in enumerate(EVERYWHERE)),
        *((alone, kind, at % 3) for at, kind in enumerate(("kernel", "work", "compile"))),
        *((experts, kind, at % 4) for at, kind in enumerate(("experts", "kernel", "host", "sync", "clocks"))),
        *((replace(experts, seed=9), "experts", rank) for rank in (1, 3)),
        *((sent, kind, 0) for kind in ("kernel", "host", "loader")),
        *((job, "none", None) for job in (pipeline, batches, alone, experts, sent)),
    ]
    begun = Loss(late=(1, 2))
    apart = replace(Job("data parallel, begun apart"), loss=begun)
    return [
        *(replace(job, fault=Fault(rank, kind), seed=job.seed + at)
          for at, (job, kind, rank) in enumerate(faults)),
        *(replace(apart, fault=Fault(rank, kind), seed=rank, ahead=ahead)
          for rank, kind in ((1, "kernel"), (0, "host"), (3, "loader")) for ahead in ((), hosts)),
        replace(pipeline, name="pipeline, begun apart", loss=begun, fault=Fault(1, "kernel")),
    ]  # fmt: skip
