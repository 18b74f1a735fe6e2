"""Sets of ranks whose communication runs while they compute, with a known cost of one slow rank.

DDP reduces the gradients of one layer during the backward pass of the next; FSDP gathers the parameters of
one layer during the computing of another. The simulator moves the clocks of each rank's host, its compute
stream and its communication streams; nothing of it is shared with the analysis. The truth is the same job,
with the same seed, without the fault. Times in µs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traces import Event, event, host, kernel, step

COMPUTE, REDUCES, GATHERS = 7, 17, 18  # streams
LAUNCH, ARRIVES = 5.0, 4.0
NOTICES = 1.5  # after which a stream goes on that waited for another
KERNELS = (("gemm_qkv", 220.0), ("attention", 310.0), ("gemm_up", 260.0), ("gemm_down", 240.0))
STALL = 3_000.0
SLOWER = 1.2


@dataclass(frozen=True)
class Job:
    """A data-parallel job.

    Args:
        kind: ``ddp`` or ``fsdp``.
        fault: ``clocks`` (all kernels of ``slow`` take 1.2 times as long), ``kernel`` (one of them 2.5
            times), ``stall`` (its host stalls once per step), ``host`` (its host takes 12 times as long for
            each launch, more than the kernels need) or ``none``.
        transfer: how long each collective moves data.
        jitter: how long every rank's host stalls once per step by chance, on average (exponential); all its
            kernels then take by chance up to 1.1 times as long in a step.
    """

    kind: str = "ddp"
    fault: str = "none"
    slow: int = 0
    ranks: int = 4
    steps: int = 4
    layers: int = 6
    transfer: float = 400.0
    seed: int = 0
    jitter: float = 0.0


@dataclass
class _Rank:
    number: int
    random: random.Random
    host: float = 0.0
    clocks: dict[int, float] = field(default_factory=lambda: dict.fromkeys((COMPUTE, REDUCES, GATHERS), 0.0))
    correlation: int = 0
    events: list[Event] = field(default_factory=list)
    launch_us: float = LAUNCH
    pace: float = 1.0

    def call(self, name: str, length: float = LAUNCH, **args: Any) -> None:
        self.events.append(event("cuda_runtime", name, self.host, length, **args))
        self.host += length

    def launch(self, stream: int) -> float:
        """When what is launched could begin."""
        self.correlation += 1
        length = self.launch_us * (1 + self.random.uniform(-0.05, 0.05))
        self.call("cudaLaunchKernel", length, correlation=self.correlation)
        return max(self.clocks[stream], self.host - length + ARRIVES)

    def compute(self, name: str, length: float) -> None:
        began = self.launch(COMPUTE)
        length *= self.pace * (1 + self.random.uniform(-0.01, 0.01))
        self.events.append(kernel(name, began, length, self.correlation, stream=COMPUTE))
        self.clocks[COMPUTE] = began + length

    def wait(self, stream: int, until: float) -> None:
        self.call("cudaEventRecord", 1.0)
        self.call("cudaStreamWaitEvent", 1.0)
        self.clocks[stream] = max(self.clocks[stream], until + NOTICES)


def simulate(job: Job) -> tuple[dict[int, list[Event]], float]:
    """The events of each rank, and how long a step took."""
    ranks = [_Rank(number, random.Random(f"{job.seed} {number}")) for number in range(job.ranks)]
    slow = ranks[job.slow]
    slow.pace = SLOWER if job.fault == "clocks" else 1.0
    slow.launch_us = 12 * 5 * LAUNCH if job.fault == "host" else LAUNCH
    for number in range(job.steps):
        marks = [rank.host for rank in ranks]
        for rank in ranks:
            rank.events.append(
                host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", rank.host, 80.0)
            )
            rank.host += 80.0
        {"ddp": _ddp, "fsdp": _fsdp}[job.kind](job, ranks)
        for rank, mark in zip(ranks, marks, strict=True):
            rank.compute("adam", 300.0)
            rank.call("cudaStreamSynchronize", max(0.0, rank.clocks[COMPUTE] - rank.host) + 5.0)
            rank.events.append(host("aten::item", rank.host, 20.0))
            rank.host += 20.0
            rank.events.append(step(number, mark, rank.host - mark))
    return {rank.number: rank.events for rank in ranks}, max(rank.host for rank in ranks) / job.steps


def _layer(job: Job, rank: _Rank, layer: int, times: float) -> None:
    is_slow = rank.number == job.slow
    if job.jitter and layer == 3 and times == 1.0:
        _stall(rank, rank.random.expovariate(1 / job.jitter))
        slowest = SLOWER if is_slow and job.fault == "clocks" else 1.0
        rank.pace = slowest * rank.random.uniform(1.0, 1.1)
    if is_slow and job.fault == "stall" and layer == 2 and times == 1.0:
        _stall(rank, STALL)
    for name, length in KERNELS:
        longer = 2.5 if is_slow and job.fault == "kernel" and name == "attention" else 1.0
        rank.compute(name, length * times * longer)


def _stall(rank: _Rank, length: float) -> None:
    rank.call("cudaStreamSynchronize", max(0.0, rank.clocks[COMPUTE] - rank.host) + 5.0)
    rank.events.append(host("aten::tokenize", rank.host, length))
    rank.host += length


def _ddp(job: Job, ranks: list[_Rank]) -> None:
    for layer in range(job.layers):
        for rank in ranks:
            _layer(job, rank, layer, 1.0)
    for layer in range(job.layers):
        for rank in ranks:
            _layer(job, rank, layer, 2.0)
        _meet(job, ranks, "allreduce", REDUCES)
    for rank in ranks:
        rank.wait(COMPUTE, rank.clocks[REDUCES])


def _fsdp(job: Job, ranks: list[_Rank]) -> None:
    """Each pass gathers one layer ahead; the backward pass scatters what it has reduced meanwhile."""
    for times in (1.0, 2.0):
        gathered = [_meet(job, ranks, "_allgather_base", GATHERS)]
        for layer in range(job.layers):
            if layer + 1 < job.layers:
                gathered.append(_meet(job, ranks, "_allgather_base", GATHERS))
            for rank in ranks:
                rank.wait(COMPUTE, gathered[layer])
                _layer(job, rank, layer, times)
            if times > 1:
                _meet(job, ranks, "_reduce_scatter_base", REDUCES)
    for rank in ranks:
        rank.wait(COMPUTE, rank.clocks[REDUCES])


def _meet(job: Job, ranks: list[_Rank], kind: str, stream: int) -> float:
    """A collective of all ranks, after what was computed so far; when it ends."""
    came: list[float] = []
    for rank in ranks:
        # What is gathered waits for nothing but, every other layer, for memory that was computed with.
        if kind != "_allgather_base":
            rank.wait(stream, rank.clocks[COMPUTE])
        elif len(rank.events) % 2:
            rank.call("cudaEventRecord", 1.0)
        came.append(rank.launch(stream))
    end = max(came) + job.transfer
    for rank, began in zip(ranks, came, strict=True):
        arguments = {
            "Collective name": kind, "In msg nelems": 65536, "Out msg nelems": 65536, "dtype": "Float",
            "Group size": job.ranks, "Process Group Name": "0", "Process Group Description": "data",
            "Process Group Ranks": str([*range(job.ranks)]),
        }  # fmt: skip
        left = end + rank.random.uniform(0, 2)
        rank.events.append(
            kernel(f"ncclDevKernel_{kind}", began, left - began, rank.correlation, stream=stream, **arguments)
        )
        rank.clocks[stream] = left
    return end


def recorded(job: Job) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rank and trace file of each."""
    for number, events in simulate(job)[0].items():
        about = {"backend": "nccl", "rank": number, "world_size": job.ranks}
        ahead = 3_000.0 * number  # no two clocks agree
        moved = [one | {"ts": 1_000 + ahead + one["ts"]} for one in events]
        yield number, {"schemaVersion": 1, "distributedInfo": about, "traceEvents": moved}


def cost_us(job: Job) -> float:
    """By how much the fault makes a step longer."""
    return simulate(job)[1] - simulate(replace(job, fault="none"))[1]
