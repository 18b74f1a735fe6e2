"""Training jobs of several ranks, simulated as a graph of what waits for what, with one thing wrong.

Every call of a host, kernel and collective is a node that begins when all that it waits for has ended: a
host's call before it, its launch, the kernel before it on its stream, an event of another stream, and of a
collective the last of its ranks. Nothing of it is shared with the analysis. The truth about a fault is the
same job, with the same seed, without it. Times in µs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from traces import Event, event, kernel, step

COMPUTE, REDUCES, GATHERS, REPLICATES, TENSORS, STAGES = 7, 17, 21, 25, 29, 40  # streams
MAIN, AUTOGRAD = 1, 2  # threads
OP, LAUNCH, ARRIVES, NOTICES = 7.0, 5.0, 4.0, 1.5
LOADER, READS = 90.0, 15.0
LAYER = (("gemm_qkv", 180.0), ("attention", 260.0), ("gemm_up", 220.0), ("gelu", 60.0), ("gemm_down", 200.0))


@dataclass(frozen=True)
class Fault:
    """What is wrong.

    Args:
        what: ``device`` (all kernels of ``ranks`` take ``times`` as long), ``kernel`` (one sort of kernel
            does), ``host`` (every call of its host does), ``stall`` (its host stalls once per step, for
            ``times`` µs), ``garbage`` (Python collects garbage for as long), ``loader`` (its data loader
            takes ``times`` µs), ``sync`` (its host waits for its device and goes on ``times`` µs later),
            ``link`` (collectives of the groups of which all ranks are in ``ranks``, or, if that is one rank,
            which reach from it to another host, take ``times`` as long), or ``none``.
    """

    what: str = "none"
    ranks: tuple[int, ...] = ()
    times: float = 1.0


@dataclass(frozen=True)
class Job:
    """A job of ``stages`` × ``data`` × ``tensor`` ranks, the last numbered first, ``per_host`` on each host.

    Args:
        way: ``ddp``, ``fsdp``, ``hsdp``, ``tensor``, ``pipeline`` or ``experts``.
        moves: how many times as long each transfer takes.
        noise: by which share kernels differ by chance; hosts' calls by ten times that.
        stalls: how long hosts stall once per step by chance, on average.
        varies: by which share devices differ from each other always.
    """

    name: str
    way: str
    data: int = 8
    tensor: int = 1
    stages: int = 1
    per_host: int = 4
    steps: int = 4
    layers: int = 6
    moves: float = 1.0
    noise: float = 0.01
    stalls: float = 0.0
    varies: float = 0.003
    fault: Fault = Fault()
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.stages

    def host(self, rank: int) -> int:
        return rank // self.per_host


class _Graph:
    """Nodes with what they wait for: places of other nodes and by how much later than their end."""

    def __init__(self) -> None:
        self.waits: list[list[tuple[int, float]]] = []
        self.lengths: list[float] = []
        self.meeting: dict[object, int] = {}

    def add(self, waits: Sequence[tuple[int, float]], length: float) -> int:
        self.waits.append(list(waits))
        self.lengths.append(length)
        return len(self.lengths) - 1

    def meet(self, key: object, came: int, length: float) -> int:
        """The node of what begins when all that came to it have."""
        if key not in self.meeting:
            self.meeting[key] = self.add([], length)
        self.waits[self.meeting[key]].append((came, 0.0))
        return self.meeting[key]

    def ends(self) -> list[float]:
        ends: dict[int, float] = {}
        for place in range(len(self.lengths)):
            open_nodes = [place]  # most wait for earlier ones alone; what meets waits for any
            while open_nodes:
                waits = self.waits[open_nodes[-1]]
                if unknown := [at for at, _ in waits if at not in ends]:
                    open_nodes += unknown
                    assert len(open_nodes) < 1 << 24, "they wait for each other"
                    continue
                node = open_nodes.pop()
                ends[node] = max((ends[at] + later for at, later in waits), default=0.0) + self.lengths[node]
        return [ends[place] for place in range(len(self.lengths))]


@dataclass
class _Rank:
    job: Job
    number: int
    graph: _Graph
    random: random.Random
    thread: int = MAIN
    step: int = 0
    last: int | None = None
    streams: dict[int, int] = field(default_factory=dict[int, int])
    pending: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    correlation: int = 0
    met: dict[object, int] = field(default_factory=dict[object, int])
    # How to write each event once its nodes' times are known: its beginning, its end, and the rest.
    written: list[tuple[int, int, Callable[[float, float], Event]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fault, own = self.job.fault, self.number in self.job.fault.ranks
        self.what = fault.what if own else "none"
        self.times = fault.times
        self.pace = 1 + self.random.gauss(0, self.job.varies)
        self.device = self.pace * (fault.times if self.what == "device" else 1.0)

    def during(self, name: str, length: float, category: str = "cpu_op", **args: Any) -> int:
        """A call of the host."""
        length *= 1 + self.random.uniform(-1, 1) * min(0.5, 10 * self.job.noise)
        if self.what == "host" and category != "user_annotation":
            length *= self.times
        return self.write(name, category, self.host(length), **args)

    def host(self, length: float, *more: tuple[int, float]) -> tuple[int, int]:
        before = [] if self.last is None else [(self.last, 0.0)]
        began = self.graph.add(before, 0.0)
        self.last = self.graph.add([(began, length), *more], 0.0)
        return began, self.last

    def write(self, name: str, category: str, bounds: tuple[int, int], **args: Any) -> int:
        tid = self.thread
        self.written.append((*bounds, lambda a, b: event(category, name, a, b - a, tid, **args)))
        return bounds[0]

    def launch(self) -> int:
        self.during("aten::op", OP)
        self.correlation += 1
        return self.during("cudaLaunchKernel", LAUNCH, "cuda_runtime", correlation=self.correlation)

    def begins(self, stream: int) -> int:
        """When what is launched now could begin."""
        launched = self.launch()
        waits = [(launched, ARRIVES)]
        waits += [(self.streams[stream], 0.5)] if stream in self.streams else []
        waits += [(one, NOTICES) for one in self.pending.pop(stream, [])]
        return self.graph.add(waits, 0.0)

    def ran(self, stream: int, name: str, began: int, end: int, **args: Any) -> None:
        own, device = self.correlation, self.number % self.job.per_host
        self.written.append(
            (began, end, lambda a, b: kernel(name, a, b - a, own, device, stream=stream, **args))
        )
        self.streams[stream] = end

    def compute(self, name: str, length: float) -> None:
        began = self.begins(COMPUTE)
        length *= self.device * (1 + self.random.uniform(-1, 1) * self.job.noise)
        if self.what == "kernel" and name.startswith("attention"):
            length *= self.times
        self.ran(COMPUTE, name, began, self.graph.add([(began, 0.0)], length))

    def wait(self, stream: int, *nodes: int | None) -> None:
        """A stream waits for what was done so far on others."""
        for node in nodes:
            if node is None:
                continue
            self.during("cudaEventRecord", 1.0, "cuda_runtime")
            self.during("cudaStreamWaitEvent", 1.0, "cuda_runtime")
            self.pending.setdefault(stream, []).append(node)

    def sync(self) -> None:
        ends = [(self.streams[COMPUTE], 4.0)] if COMPUTE in self.streams else []
        self.write("cudaStreamSynchronize", "cuda_runtime", self.host(5.0, *ends))

    def meet(
        self, stream: int, name: str, group: tuple[int, ...], kind: str, elements: int, transfer: float,
        load: float = 1.0, key: object = None, **more: Any,
    ) -> int:  # fmt: skip
        """A collective on a stream; the node of its end."""
        if len(group) == 1:
            return self.streams.get(COMPUTE, 0)
        began = self.begins(stream)
        key = key or (name, group, self.met.setdefault((name, group), 0))
        self.met[name, group] = self.met.get((name, group), 0) + 1
        transfer *= self.job.moves * (1 + random.Random(f"{self.job.seed} {key}").uniform(-0.03, 0.03))
        if self.job.fault.what == "link" and _is_slow(self.job, group):
            transfer *= self.times
        joined = self.graph.meet(key, began, 0.0)
        end = self.graph.add([(joined, transfer * load)], self.random.uniform(0, 2))
        arguments = {
            "Collective name": kind, "In msg nelems": elements, "Out msg nelems": int(elements * load),
            "dtype": "Float", "Group size": len(group), "Process Group Name": f"{name}{group[0]}",
            "Process Group Ranks": str(list(group)), "Process Group Description": name, **more,
        }  # fmt: skip
        shown = "SendRecv" if kind in ("send", "recv", "all_to_all") else kind
        self.ran(stream, f"ncclDevKernel_{shown}", began, end, **arguments)
        return end

    def layer(self, layer: int, times: float, sort: str) -> None:
        if layer == 1 and times == 1.0 and sort == "fwd":
            self._fault()
        for name, length in LAYER:
            self.compute(f"{name}_{sort}", length * times)

    def _fault(self) -> None:
        """What a host does by chance, or is wrong with it, once per step."""
        stall = self.random.expovariate(1.0) * self.job.stalls
        if stall:
            self.write("aten::tokenize", "cpu_op", self.host(stall))
        if self.what == "stall":
            self.sync()
            self.write("aten::tokenize", "cpu_op", self.host(self.times))
        if self.what == "garbage":
            self.write("Python GC", "python_function", self.host(self.times))
        if self.what == "sync":
            self.sync()
            self.host(self.times)


def _is_slow(job: Job, group: tuple[int, ...]) -> bool:
    slow = job.fault.ranks
    if len(slow) > 1:
        return set(group) <= set(slow)
    return slow[0] in group and len({job.host(rank) for rank in group}) > 1


def _places(job: Job, rank: int) -> tuple[int, int, int]:
    """Its stage, its data-parallel worker and its place among tensor-parallel ranks."""
    return rank // (job.data * job.tensor), rank // job.tensor % job.data, rank % job.tensor


def _group(job: Job, rank: int, axis: str) -> tuple[int, ...]:
    stage, data, tensor = _places(job, rank)
    first = stage * job.data * job.tensor
    if axis == "tensor":
        return tuple(first + data * job.tensor + at for at in range(job.tensor))
    if axis == "data":
        return tuple(first + at * job.tensor + tensor for at in range(job.data))
    if axis == "shard":  # of a host
        return tuple(range(rank // job.per_host * job.per_host, (rank // job.per_host + 1) * job.per_host))
    if axis == "replicas":
        return tuple(range(rank % job.per_host, job.ranks, job.per_host))
    return tuple(range(job.ranks))


def slow_group(job: Job) -> set[int]:
    """The ranks of the group whose link is slow."""
    slow = job.fault.ranks
    if len(slow) > 1:
        return set(slow)
    groups = (_group(job, slow[0], "replicas" if job.way == "hsdp" else "data"),)
    return set(next(group for group in groups if _is_slow(job, group)))


def _ddp(rank: _Rank) -> None:
    job, group = rank.job, _group(rank.job, rank.number, "data")
    for layer in range(job.layers):
        rank.layer(layer, 1.0, "fwd")
    reduced: list[int] = []
    with _Backward(rank):
        for layer in range(job.layers):
            rank.layer(layer, 2.0, "bwd")
            if layer % 2:
                rank.wait(REDUCES, rank.streams[COMPUTE])
                reduced.append(rank.meet(REDUCES, "data", group, "allreduce", 1 << 22, 1400.0))
    rank.wait(COMPUTE, *reduced[-1:])


def _fsdp(rank: _Rank) -> None:
    """Parameters are gathered one layer ahead, into memory that the layer before has left."""
    job = rank.job
    is_hybrid = job.way == "hsdp"
    shard = _group(job, rank.number, "shard" if is_hybrid else "data")
    name = "shard" if is_hybrid else "data"
    reduced: int | None = None
    for times, sort in ((1.0, "fwd"), (2.0, "bwd")):
        with _Backward(rank, sort == "bwd"):
            done: list[int] = []

            def gather(done: list[int] = done) -> int:
                if len(done) > 1:
                    rank.wait(GATHERS, done[-2])
                return rank.meet(GATHERS, name, shard, "_allgather_base", 1 << 20, 450.0)

            gathered = [gather()]
            for layer in range(job.layers):
                if layer + 1 < job.layers:
                    gathered.append(gather())
                rank.wait(COMPUTE, gathered[layer])
                rank.layer(layer, times, sort)
                done.append(rank.streams[COMPUTE])
                if times > 1:
                    rank.wait(REDUCES, rank.streams[COMPUTE])
                    reduced = rank.meet(REDUCES, name, shard, "_reduce_scatter_base", 1 << 20, 500.0)
                    if is_hybrid:
                        rank.wait(REPLICATES, reduced)
                        replicas = _group(job, rank.number, "replicas")
                        reduced = rank.meet(REPLICATES, "replicas", replicas, "allreduce", 1 << 18, 350.0)
    rank.wait(COMPUTE, reduced)


def _tensor(rank: _Rank) -> None:
    job = rank.job
    for times, sort in ((1.0, "fwd"), (2.0, "bwd")):
        with _Backward(rank, sort == "bwd"):
            for layer in range(job.layers):
                rank.layer(layer, times, sort)
                _reduce_tensors(rank)
            if sort == "bwd":
                _reduce_gradients(rank)


def _reduce_tensors(rank: _Rank) -> None:
    group = _group(rank.job, rank.number, "tensor")
    if len(group) > 1:
        rank.wait(TENSORS, rank.streams[COMPUTE])
        rank.wait(COMPUTE, rank.meet(TENSORS, "tensor", group, "allreduce", 1 << 16, 110.0))


def _reduce_gradients(rank: _Rank) -> None:
    group = _group(rank.job, rank.number, "data")
    if len(group) > 1:
        rank.wait(REDUCES, rank.streams[COMPUTE])
        rank.wait(COMPUTE, rank.meet(REDUCES, "data", group, "allreduce", 1 << 22, 900.0))


def _experts(rank: _Rank) -> None:
    job, everyone = rank.job, _group(rank.job, rank.number, "all")
    for times, sort in ((1.0, "fwd"), (2.0, "bwd")):
        with _Backward(rank, sort == "bwd"):
            for layer in range(job.layers):
                load = 1 + rank.random.uniform(-0.03, 0.03)
                rank.layer(layer, times, sort)
                for what in ("dispatch", "combine"):
                    rank.wait(GATHERS, rank.streams[COMPUTE])
                    rank.wait(
                        COMPUTE, rank.meet(GATHERS, "experts", everyone, "all_to_all", 1 << 18, 160.0, load)
                    )
                    if what == "dispatch":
                        rank.compute(f"grouped_gemm_{sort}", 500.0 * times * load)
    _reduce_gradients(rank)


def _pipeline(rank: _Rank) -> None:
    """One forward, one backward; a stage's sends keep only their own stream."""
    job = rank.job
    stage, _, _ = _places(job, rank.number)
    apart, batches = job.data * job.tensor, 2 * job.stages
    warm = min(batches, job.stages - 1 - stage)
    order = "F" * warm + "FB" * (batches - warm) + "B" * warm
    done = {"F": 0, "B": 0}
    for what in order:
        ways = (-1, 1) if what == "F" else (1, -1)
        with _Backward(rank, what == "B"):
            for kind, way in zip(("recv", "send"), ways, strict=True):
                if kind == "send":
                    _microbatch(rank, what)
                if not 0 <= stage + way < job.stages:
                    continue
                peer = rank.number + way * apart
                ends = (rank.number, peer) if kind == "send" else (peer, rank.number)
                stream = STAGES + 2 * ["F", "B"].index(what) + ["recv", "send"].index(kind)
                if kind == "send":
                    rank.wait(stream, rank.streams[COMPUTE])
                everyone = tuple(range(rank.number % apart, job.ranks, apart))
                at = {"Dst Rank" if kind == "send" else "Src Rank": everyone.index(peer)}
                end = rank.meet(
                    stream, "stages", everyone, kind, 1 << 17, 60.0,
                    key=(ends, what, rank.step, done[what]), **at,
                )  # fmt: skip
                if kind == "recv":
                    rank.wait(COMPUTE, end)
        done[what] += 1
    with _Backward(rank):
        _reduce_gradients(rank)


def _microbatch(rank: _Rank, what: str) -> None:
    stage = _places(rank.job, rank.number)[0]
    times, sort = (0.5, "fwd") if what == "F" else (1.0, "bwd")
    for layer in range(2):
        if layer == 1 and what == "F" and rank.met.setdefault(("faulty", rank.step), 0) == 0:
            rank.met["faulty", rank.step] = 1
            rank._fault()
        for name, length in LAYER:
            rank.compute(f"{name}_{sort}", length * times)
        _reduce_tensors(rank)
    if stage == rank.job.stages - 1:
        rank.compute(f"lm_head_{sort}", 90.0 * times)


class _Backward:
    """What autograd's thread calls."""

    def __init__(self, rank: _Rank, is_one: bool = True) -> None:
        self.rank, self.is_one = rank, is_one

    def __enter__(self) -> None:
        if self.is_one:
            self.began = self.rank.host(1.0)[0]
            self.rank.thread = AUTOGRAD

    def __exit__(self, *_: object) -> None:
        if self.is_one:
            name = "autograd::engine::evaluate_function: MmBackward0"
            self.rank.write(name, "cpu_op", (self.began, self.rank.last or 0))
            self.rank.thread = MAIN


WAYS = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "hsdp": _fsdp,
    "tensor": _tensor,
    "pipeline": _pipeline,
    "experts": _experts,
}


@lru_cache(maxsize=2)  # the cost of what was just recorded is asked for next
def _programs(job: Job) -> tuple[list[_Rank], list[float], list[list[int]]]:
    """The ranks, when each node ends, and the nodes with which each rank's steps end, the beginning first."""
    graph = _Graph()
    ranks = [_Rank(job, number, graph, random.Random(f"{job.seed} {number}")) for number in range(job.ranks)]
    marks: list[list[int]] = []
    for rank in ranks:
        # A profiler starts at another time on each rank.
        own = [rank.host(1000 + rank.random.uniform(0, 400))[1]]
        for number in range(job.steps):
            rank.step = number
            length = LOADER if rank.what != "loader" else rank.times
            rank.during(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", length, "user_annotation"
            )
            WAYS[job.way](rank)
            rank.compute("adam", 250.0)
            rank.sync()
            rank.during("aten::item", READS)
            # Steps are not all alike, as nothing is.
            rank.host(37.0 * ((number * 7) % 5))
            assert rank.last is not None
            own.append(rank.last)
            mark = own[-2], own[-1]
            rank.written.append((*mark, lambda a, b, n=number: step(n, a, b - a)))
        marks.append(own)
    return ranks, graph.ends(), marks


def step_us(job: Job) -> float:
    """How long a step takes, of those after the first."""
    _, ends, marks = _programs(job)
    return max(ends[own[-1]] - ends[own[1]] for own in marks) / (job.steps - 1)


@cache
def cost(job: Job) -> float:
    """Which share of a step the fault is."""
    return 1 - step_us(replace(job, fault=replace(job.fault, what="none"))) / step_us(job)


def recorded(job: Job) -> list[tuple[int, Mapping[str, Any]]]:
    """Rank and trace file of each."""
    ranks, ends, _ = _programs(job)
    found: list[tuple[int, Mapping[str, Any]]] = []
    for rank in ranks:
        ahead = 1_000.0 + 4_321.0 * job.host(rank.number)  # no two hosts' clocks agree
        events = [write(ends[a], ends[b]) for a, b, write in rank.written]
        events = [one | {"ts": ahead + one["ts"]} for one in sorted(events, key=lambda one: one["ts"])]
        about = {"backend": "nccl", "rank": rank.number, "world_size": job.ranks}
        found.append((rank.number, {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}))
    return found
