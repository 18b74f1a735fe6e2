"""Sets of ranks whose truth is known: a training loop, simulated, with one thing wrong with it or its
recording.

Each rank has a host that runs ahead of its device until it reads the loss; kernels and collectives share one
stream of time. Times in µs. What is written is what a profiler would have: each rank's events on its own
clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from traces import Event, host, kernel, step

TENSORS, DATA, EVERYONE = "tensors", "data", "everyone"
KERNELS = (
    ("gemm_qkv", 220.0),
    ("attention", 310.0),
    ("gemm_up", 260.0),
    ("gelu", 90.0),
    ("gemm_down", 240.0),
)
TRANSFER = {"allreduce": 120.0, "_allgather_base": 80.0, "_reduce_scatter_base": 80.0, "broadcast": 30.0,
            "all_to_all": 90.0}  # fmt: skip
NOTHING: Mapping[int, float] = MappingProxyType({})
LAUNCH, ARRIVES, LOADER, READS = 6.0, 4.0, 150.0, 20.0
HOLDS, MICROBATCHES, PASSES = 2500.0, 4, 30.0


Transfer = tuple[str, str, int]  # "send" or "recv", forward or backward ("F", "B"), which microbatch


@dataclass(frozen=True)
class Fault:
    """What is wrong with ``rank``: one of ``kernel``, ``clocks``, ``work``, ``host``, ``loader``, ``sync``,
    ``compile``, or nothing."""

    rank: int | None = None
    kind: str = "none"


@dataclass(frozen=True)
class Loss:
    """What is wrong with the recording.

    Args:
        missing, repeated: ranks whose trace is not there, or there twice.
        late: ranks whose trace begins after 30 % of its events.
        damaged: ranks whose trace ends after 60 % of its events.
        shifted: ranks that lost their first collective of each group; ``holes``: one in the middle.
    """

    missing: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    shifted: tuple[int, ...] = ()
    holes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """Args:
    tensor: ranks of a tensor-parallel group; the ranks that share a place in theirs make a data-parallel one.
    ahead: by host, of ``per_host`` ranks each, how far its clock is ahead, and by how much it drifts.
    data: the collectives at a step's end, one after the other.
    marks: whether steps are marked.
    way: ``layers``; ``pipeline``, where each rank is a stage (1F1B); ``batches``, the same, sent as torch
        does; or ``experts``, on every rank some.
    """

    name: str
    ranks: int = 4
    tensor: int = 1
    steps: int = 4
    fault: Fault = Fault()
    loss: Loss = Loss()
    per_host: int = 2
    ahead: tuple[tuple[float, float], ...] = ()
    data: tuple[str, ...] = ("allreduce", "allreduce")
    marks: bool = True
    way: str = "layers"
    seed: int = 0


@dataclass
class _Rank:
    """A rank under way: when its host and its device are free, and what was recorded."""

    number: int
    random: random.Random
    host: float = 0.0
    device: float = 0.0
    pace: float = 1.0
    correlation: int = 0
    events: list[Event] = field(default_factory=list)

    def during(self, name: str, length: float, category: str = "cpu_op") -> None:
        self.events.append(host(name, self.host, length, category))
        self.host += length

    def launch(self) -> float:
        """The call, and when what it launches could begin."""
        self.correlation += 1
        self.events.append(
            host("cudaLaunchKernel", self.host, LAUNCH, "cuda_runtime", correlation=self.correlation)
        )
        self.host += LAUNCH
        return max(self.device, self.host - LAUNCH + ARRIVES)

    def compute(self, name: str, length: float) -> None:
        start = self.launch()
        length *= self.pace * (1 + self.random.uniform(-0.01, 0.01))
        self.events.append(kernel(name, start, length, self.correlation))
        self.device = start + length

    def sync(self) -> None:
        self.events.append(
            host("cudaStreamSynchronize", self.host, max(0.0, self.device - self.host) + 5, "cuda_runtime")
        )
        self.host = max(self.host, self.device) + 5


def groups(job: Job) -> dict[str, list[tuple[int, ...]]]:
    everyone = range(job.ranks)
    return {
        TENSORS: [tuple(everyone[at : at + job.tensor]) for at in range(0, job.ranks, job.tensor)],
        DATA: [tuple(everyone[at :: job.tensor]) for at in range(job.tensor)],
        EVERYONE: [tuple(everyone)],
    }


def simulate(job: Job) -> dict[int, list[Event]]:
    """The events of every rank on one true clock."""
    ranks = [_Rank(number, random.Random(f"{job.seed} {number}")) for number in range(job.ranks)]
    begun = 0.0
    for rank in ranks:
        rank.pace = 1.4 if job.fault == Fault(rank.number, "clocks") else 1.0
    for number in range(job.steps):
        marks = [rank.host for rank in ranks]
        for rank in ranks:
            _load(rank, job, number)
        WAYS[job.way](job, ranks, number)
        for index, kind in enumerate(job.data):
            for rank in ranks:
                rank.compute("gemm_backward", 300.0)
            for group in groups(job)[DATA]:
                _meet(job, ranks, DATA, group, kind, 65536 + 1024 * index)
        for rank, mark in zip(ranks, marks, strict=True):
            rank.compute("adam", 150.0)
            rank.sync()
            rank.during("aten::item", READS)
            if job.marks:
                rank.events.append(step(number, mark, rank.host - mark))
            # Steps are not all alike, as nothing is.
            rank.host += begun + 37.0 * ((number * 7) % 5)
    return {rank.number: rank.events for rank in ranks}


def _layers(job: Job, ranks: list[_Rank], number: int) -> None:
    for layer in range(3):
        for rank in ranks:
            _layer(rank, job.fault, layer)
        if job.tensor > 1:
            for group in groups(job)[TENSORS]:
                _meet(job, ranks, TENSORS, group, "allreduce", 4096)


def _experts(job: Job, ranks: list[_Rank], number: int) -> None:
    """Tokens go to the ranks of their experts and back; of a fault twice as many to one of them."""
    everyone = groups(job)[EVERYONE][0]
    for _ in range(3):
        loads = {rank.number: 1 + rank.random.uniform(-0.03, 0.03) for rank in ranks}
        if job.fault.kind == "experts":
            fewer = (job.ranks - 2) / (job.ranks - 1)
            loads = {own: load * (2 if own == job.fault.rank else fewer) for own, load in loads.items()}
        for rank in ranks:
            _layer(rank, job.fault, 1)
        _meet(job, ranks, EVERYONE, everyone, "all_to_all", 65536, loads)
        for rank in ranks:
            rank.compute("gemm_experts", 800.0 * loads[rank.number])
        _meet(job, ranks, EVERYONE, everyone, "all_to_all", 65536, loads)


def _pipeline(job: Job, ranks: list[_Rank], number: int) -> None:
    """One forward, one backward: sends are buffered, receives wait for them."""
    sent: dict[tuple[int, int, int], float] = {}
    one = _batches if job.way == "batches" else _stage
    stages = {rank.number: one(job, rank, sent) for rank in ranks}
    while stages:
        stages = {own: stage for own, stage in stages.items() if next(stage, False)}


def _stage(job: Job, rank: _Rank, sent: dict[tuple[int, int, int], float]) -> Iterator[bool]:
    """Its microbatches, as far as what it needs was sent; True while it waits."""
    last = job.ranks - 1
    warm = min(MICROBATCHES, last - rank.number)
    order = "F" * warm + "FB" * (MICROBATCHES - warm) + "B" * warm
    done = {"F": 0, "B": 0}
    for what in order:
        came, goes = (rank.number - 1, rank.number + 1)[:: 1 if what == "F" else -1]
        if 0 <= came <= last:
            while (came, rank.number, done[what]) not in sent:
                yield True
            _pass(job, rank, "recv", came, sent[came, rank.number, done[what]])
        _microbatch(job, rank, what)
        if 0 <= goes <= last:
            sent[rank.number, goes, done[what]] = _pass(job, rank, "send", goes)
        done[what] += 1


def _microbatch(job: Job, rank: _Rank, what: str) -> None:
    if what == "F":
        _layer(rank, job.fault, 1)
        return
    began = rank.host
    rank.compute("gemm_backward", 250.0)
    rank.compute("gemm_backward", 250.0)
    rank.events.append(host("autograd::engine::evaluate_function: MmBackward0", began, rank.host - began))


def _batches(job: Job, rank: _Rank, sent: dict[tuple[int, int, int], float]) -> Iterator[bool]:
    """As torch's Schedule1F1B: what is left to send goes with what is received next, in one batch."""
    warm = min(MICROBATCHES, job.ranks - rank.number)
    left: list[Transfer] = []
    for number in range(warm):
        yield from _batch(job, rank, sent, [("recv", "F", number)])
        _microbatch(job, rank, "F")
        left = [("send", "F", number)]
        if number < warm - 1:
            yield from _batch(job, rank, sent, left)
    for number in range(MICROBATCHES):
        yield from _batch(job, rank, sent, [*left, ("recv", "B", number)])
        _microbatch(job, rank, "B")
        left = [("send", "B", number)]
        if warm + number < MICROBATCHES:
            yield from _batch(job, rank, sent, [*left, ("recv", "F", warm + number)])
            _microbatch(job, rank, "F")
            left = [("send", "F", warm + number)]
        else:
            yield from _batch(job, rank, sent, left)
            left = []


def _batch(
    job: Job, rank: _Rank, sent: dict[tuple[int, int, int], float], transfers: list[Transfer]
) -> Iterator[bool]:
    """Two tensors of each transfer, all in one kernel, which has no arguments: the calls before it have. It
    waits for what it receives, not for who receives."""
    own = rank.number
    ends = [(kind, own + (1 if (kind == "send") == (what == "F") else -1), n) for kind, what, n in transfers]
    ends = [one for one in ends if 0 <= one[1] < job.ranks]
    if not ends:
        return
    for kind, peer, _ in ends:
        for elements in (32768, 64):
            rank.during("record_param_comms", 3.0)
            rank.events[-1]["args"] |= {
                **_arguments("stages", groups(job)[EVERYONE][0], kind, elements, elements),
                "Dst Rank" if kind == "send" else "Src Rank": peer,
            }
    came = [rank.launch()]
    sent |= {(own, peer, number): came[0] for kind, peer, number in ends if kind == "send"}
    for kind, peer, number in ends:
        while kind == "recv" and (peer, own, number) not in sent:
            yield True
        came += [sent[peer, own, number]] if kind == "recv" else []
    rank.device = max(came) + PASSES + rank.random.uniform(0, 1)
    rank.events.append(
        kernel("ncclDevKernel_SendRecv", came[0], rank.device - came[0], rank.correlation, stream=18)
    )


def _pass(job: Job, rank: _Rank, kind: str, peer: int, sent: float = 0.0) -> float:
    """One end of a send and receive; torch names the other end alone. When it began."""
    start = rank.launch()
    end = max(start, sent) + PASSES + rank.random.uniform(0, 1)
    rank.events.append(
        kernel("ncclDevKernel_SendRecv", start, end - start, rank.correlation, stream=18,
               **_arguments("stages", groups(job)[EVERYONE][0], kind, 32768, 32768),
               **{"Dst Rank" if kind == "send" else "Src Rank": peer})
    )  # fmt: skip
    rank.device = end
    return start


WAYS = {"layers": _layers, "experts": _experts, "pipeline": _pipeline, "batches": _pipeline}


def _load(rank: _Rank, job: Job, number: int) -> None:
    fault = job.fault
    slow = rank.number == fault.rank and fault.kind == "loader"
    length = LOADER * (1 if not slow else 12 if job.way == "layers" else 30)
    rank.during("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", length, "user_annotation")
    if rank.number == fault.rank and fault.kind == "compile" and number == 2:
        rank.during("inductor_compile (dynamo_timed)", 6000.0)


def _layer(rank: _Rank, fault: Fault, layer: int) -> None:
    own = fault.kind if rank.number == fault.rank else "none"
    if own == "host" and layer == 1:
        rank.during("aten::tokenize", HOLDS)
    if own == "sync" and layer == 1:
        rank.sync()
        rank.host += 900.0
    for name, length in KERNELS:
        longer = 3.0 if own == "kernel" and name == "attention" else 1.0
        rank.compute(name, length * longer)
    for _ in range(4 if own == "work" else 0):
        rank.compute("gemm_up", 260.0)


def _meet(
    job: Job, ranks: list[_Rank], name: str, group: tuple[int, ...], kind: str, elements: int,
    loads: Mapping[int, float] = NOTHING,
) -> None:  # fmt: skip
    """A collective: it ends for all when the last has come and the data has moved; a broadcast's sender, the
    group's first, does not wait."""
    if len(group) == 1:
        return
    arrived = {number: ranks[number].launch() for number in group}
    came = arrived[group[0]] if kind == "broadcast" else max(arrived.values())
    for number in group:
        rank = ranks[number]
        load = loads.get(number, 1.0)
        end = max(came, arrived[number]) + TRANSFER[kind] * load + rank.random.uniform(0, 3)
        arguments = _arguments(name, group, kind, elements, int(elements * load))
        rank.events.append(
            kernel(f"ncclDevKernel_{kind}", arrived[number], end - arrived[number], rank.correlation,
                   stream=17, **arguments)
        )  # fmt: skip
        rank.device = end


def _arguments(name: str, group: tuple[int, ...], kind: str, came: int, left: int) -> dict[str, Any]:
    return {
        "Collective name": kind, "In msg nelems": came, "Out msg nelems": left, "dtype": "Float",
        "Group size": len(group), "Process Group Name": f"{name}{group[0]}",
        "Process Group Ranks": str(list(group)), "Process Group Description": name,
    }  # fmt: skip


def recorded(job: Job) -> list[tuple[int, dict[str, Any]]]:
    """Rank and trace file of each that is there, repeated ones twice."""
    found: list[tuple[int, dict[str, Any]]] = []
    for number, events in simulate(job).items():
        if number in job.loss.missing:
            continue
        events = list(_left(events, number, job.loss))
        offset, drift = job.ahead[number // job.per_host] if job.ahead else (0.0, 0.0)
        events = [one | {"ts": 1000 + offset + one["ts"] * (1 + drift)} for one in events]
        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": number, "world_size": job.ranks},
            "traceEvents": events,
        }
        found += [(number, trace)] * (2 if number in job.loss.repeated else 1)
    return found


def _left(events: list[Event], number: int, loss: Loss) -> Iterable[Event]:
    """What a damaged recording holds of the events."""
    if number in loss.damaged:
        events = events[: int(0.6 * len(events))]
    if number in loss.late:
        events = events[int(0.3 * len(events)) :]
    collectives = [one for one in events if "Group size" in one["args"]]
    lost: list[Event] = []
    if number in loss.shifted:
        firsts = {one["args"]["Process Group Name"]: one for one in reversed(collectives)}
        lost += firsts.values()
    if number in loss.holes:
        lost.append(collectives[len(collectives) // 2])
    return (one for one in events if not any(one is gone for gone in lost))
