"""Ops of what runs inside a replayed CUDA graph, by a recording of its capture.

A replay is one launch: its kernels carry that launch's correlation and nothing of the ops that put them into
the graph. While a graph is captured each of its launches is recorded with its op, and a graph of one stream
replays them in that order: the i-th launch of the capture is the i-th event of each replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import polars as pl
from msgspec.structs import replace

from kinetoscope.trace import schema
from kinetoscope.trace.engines import batch_of_file, captured_batch, engine_step
from kinetoscope.trace.model import Trace
from kinetoscope.trace.tree import innermost

# Calls that put work on a device. A copy or memset of no bytes puts none there.
KERNEL_LAUNCH = r"^(cuda|cu|hip)(Ext|Hcc)?(Module)?Launch(Cooperative|Multi)?Kernel"
GRAPH_LAUNCH = r"^(cuda|cu|hip)GraphLaunch"
COPY = r"^(cuda|cu|hip)(Memcpy|Memset)"
LAUNCH = f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}|{COPY}"
DRIVER_KERNEL = re.compile(r"(memcpy|memset)\d+\w*$")
# Between these calls a thread's launches go into a graph and put nothing on the device.
CAPTURE_BEGIN = r"^(cuda|cu|hip)StreamBeginCapture"
CAPTURE_END = r"^(cuda|cu|hip)StreamEndCapture"

# Categories of what a capture recorded, where it has been joined: it is no work of the host in the steps.
CAPTURED = {"cpu_op": "captured_op", "user_annotation": "captured_op", "python_function": "captured_frame"}
# Where the recorder notes which capture is replayed next in the thread.
NOTED = "graph_replay"
_MOST_CAPTURES = 2048  # of one run: engines capture some seventy batches, of some hundred pieces each at most


class Capture(NamedTuple):
    trace: Trace  # where it was recorded
    lane: int
    start_ns: int
    end_ns: int
    calls: pl.Series  # rows of that trace's ``host_events`` that put work into the graph, in order
    kinds: str  # what each puts there: ``k`` a kernel, ``c`` a copy, ``s`` a memset
    ops: pl.Series  # the rows of the innermost op around each; null where there is none
    names: tuple[str | None, ...]  # of these ops
    batch: int | None  # requests or tokens that it was captured for, where an annotation or the file says so


def is_capture(trace: Trace) -> bool:
    """Whether the trace records how graphs were captured, and no steps: most of what it launched went into
    graphs, or most of its time on capturing them, and none was replayed but once to end its capture, as
    Inductor does."""
    found = [capture for capture in captures(trace) if len(capture.calls)]
    if not found or any(engine_step(name) for name in trace.steps["name"]):
        return False
    host = trace.host_events
    launches = host.filter(_named(host, GRAPH_LAUNCH))
    ends = [(capture.end_ns, False) for capture in found]
    order = sorted([*ends, *((at, True) for at in launches["start_ns"])])
    if any(replays and not (place and not order[place - 1][1]) for place, (_, replays) in enumerate(order)):
        return False
    replayed = trace.device_events["launch"].is_in(launches["id"].implode()).sum()
    captured = sum(len(capture.calls) for capture in found)
    took_ns = sum(capture.end_ns - capture.start_ns for capture in found)
    began, ended = host["start_ns"].min(), (host["start_ns"] + host["duration_ns"]).max()
    whole_ns = schema.whole(ended) - schema.whole(began)
    return captured > len(trace.device_events) - replayed or 2 * took_ns > whole_ns


def replays_graphs(trace: Trace) -> bool:
    return bool(_named(trace.host_events, GRAPH_LAUNCH).any())


def captures(trace: Trace) -> list[Capture]:
    host = trace.host_events
    marks = host.filter(_named(host, f"{CAPTURE_BEGIN}|{CAPTURE_END}"))
    if marks.is_empty():
        return []
    marks = marks.select("lane", "start_ns", begins=_named(marks, CAPTURE_BEGIN))
    found: list[Capture] = []
    launching = host.select("id", "lane", "start_ns").filter(_named(host, LAUNCH))
    begun: dict[int, int] = {}
    for lane, at, begins in marks.sort("start_ns").iter_rows():
        if begins:
            begun[lane] = at
        elif (start := begun.pop(lane, None)) is not None and len(found) < _MOST_CAPTURES:
            calls = launching.filter(lane=lane).filter(pl.col("start_ns").is_between(start, at))
            found.append(_capture(trace, lane, start, at, calls.sort("start_ns")["id"]))
    return found


def _named(host: pl.DataFrame, pattern: str) -> pl.Series:
    names = host["name"]
    names = names[names.to_physical().arg_unique()]  # three times as fast as ``unique``
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    if wanted.is_empty():  # as in most traces: then rows need not be looked at
        return pl.Series([False]).new_from_index(0, len(host))
    return host["name"].is_in(wanted.implode())


def _capture(trace: Trace, lane: int, start: int, end: int, calls: pl.Series) -> Capture:
    host = trace.host_events
    is_open = (pl.col("start_ns") <= start) & (pl.col("start_ns") + pl.col("duration_ns") > start)
    around = host.filter((pl.col("lane") == lane) & is_open)["name"].cast(pl.String).to_list()
    batch = next((size for name in reversed(around) if (size := captured_batch(name))), None)
    batch = batch or batch_of_file(trace.source.path)
    kinds = _kinds(host["name"].gather(calls).cast(pl.String))
    ops = innermost(host, host["category"].cast(pl.String) == "cpu_op", calls)
    names = tuple(host["name"].gather(ops).cast(pl.String))
    return Capture(trace, lane, start, end, calls, kinds, ops, names, batch)


def _kinds(calls: pl.Series) -> str:
    return "".join("s" if "Memset" in call else "c" if "Memcpy" in call else "k" for call in calls)


class _Replay(NamedTuple):
    """One launch of a graph and what ran for it: rows of ``device_events`` in the order of their stream."""

    launch: int
    step: int | None
    events: list[int]
    kinds: str
    names: list[str]


def with_captures(
    trace: Trace, others: Sequence[Trace] = (), numbered: Sequence[Capture | None] = ()
) -> Trace:
    """The trace, with the ops of its graphs' kernels as far as captures tell them for certain.

    Captures are those of the trace itself and of ``others``, recordings of captures. A replay is joined to
    a capture of as many launches of the same kinds in the same order, whose ops that are named after their
    kernel (Triton's) agree with what ran: all of a step to all of one go, where they are as many, of the
    least batch that holds the step's; else each to the only one that fits. Where none does, a replay may be
    without its last events, which ROCm's profiler leaves out, if the last that it has is named after its op.
    Replays on several streams are left as they are: over these the order is not the captured one.

    Where the recording notes which capture each replay is of (events of the category ``graph_replay``, named
    after the place in ``numbered``), that one is taken, if it fits.

    What was captured comes behind the rows of ``host_events``, under the categories of ``CAPTURED``.
    """
    known = [capture for one in (trace, *others) for capture in captures(one) if len(capture.calls)]
    if not known and not numbered:
        return trace
    joined: list[tuple[_Replay, Capture]] = []
    unnamed: list[_Replay] = []
    number_of = _numbers(trace)
    for replay in _replays(trace):
        number = number_of.get(replay.launch)
        capture = numbered[number] if number is not None and number < len(numbered) else None
        if capture is None:
            unnamed.append(replay)
        elif _fits(capture, replay) or _begins(capture, replay):
            joined.append((replay, capture))
    for step, replays in groupby(unnamed, key=lambda replay: replay.step):
        batch = _batch(trace, step)
        joined += _together(list(replays), known, batch)
    return _joined(trace, joined) if joined else trace


def _numbers(trace: Trace) -> dict[int, int]:
    """The number of the capture that each launch of a graph is said to replay."""
    host = trace.host_events
    said = host.filter(host["category"].cast(pl.String) == NOTED).select(
        "lane",
        "start_ns",
        number=pl.col("name").cast(pl.String).str.extract(r"^capture (\d{1,6})$").cast(pl.Int64),
    )
    if said.is_empty():
        return {}
    launches = host.select("id", "lane", "start_ns").filter(_named(host, GRAPH_LAUNCH)).sort("start_ns")
    found = launches.join_asof(
        said.drop_nulls().sort("start_ns"), on="start_ns", by="lane", check_sortedness=False
    ).drop_nulls("number")
    # One replay is one launch: the first after it was noted.
    return dict(found.unique(["lane", "number", "start_ns"]).select("id", "number").iter_rows())


def _batch(trace: Trace, step: int | None) -> int | None:
    """The batch that a step's graphs were captured for, or less, where its engine says that."""
    said = None if step is None else engine_step(trace.steps["name"][step])
    return None if said is None else said.padded or said.requests


def _together(
    replays: Sequence[_Replay], known: Sequence[Capture], batch: int | None
) -> Iterator[tuple[_Replay, Capture]]:
    """The replays of one step with their captures: those that were captured in one go, in their order, where
    all fit; else each with the only one that fits it."""
    goes = [list(go) for _, go in groupby(known, key=lambda one: (id(one.trace), one.batch))]
    goes = [go for go in goes if len(go) == len(replays) and _holds(go[0], batch)]
    for fits in (_fits, _begins):
        fitting = [go for go in goes if all(map(fits, go, replays))]
        if fitting:
            smallest = min(go[0].batch or 0 for go in fitting)
            least = [go for go in fitting if (go[0].batch or 0) == smallest]
            if len(least) == 1:
                yield from zip(replays, least[0], strict=True)
            return
    held = [one for one in known if _holds(one, batch)]
    for replay in replays:
        alone = [one for one in held if _fits(one, replay)] or [one for one in held if _begins(one, replay)]
        if len(alone) == 1:
            yield replay, alone[0]


def _holds(capture: Capture, batch: int | None) -> bool:
    return capture.batch is None or batch is None or capture.batch >= batch


def _fits(capture: Capture, replay: _Replay) -> bool:
    """Whether a replay's events are of the captured kinds, and ops called as their kernel have that."""
    return capture.kinds == replay.kinds and _agree(capture, replay)


def _begins(capture: Capture, replay: _Replay) -> bool:
    """Whether they are those with which the capture begins, up to an op that is called as its kernel."""
    last = capture.names[len(replay.names) - 1] if len(replay.names) < len(capture.names) else None
    begins = _named_as_its_kernel(last) and capture.kinds.startswith(replay.kinds)
    return begins and _agree(capture, replay)


def _agree(capture: Capture, replay: _Replay) -> bool:
    both = zip(capture.names, replay.names, strict=False)
    return all(op == kernel for op, kernel in both if _named_as_its_kernel(op))


def _named_as_its_kernel(op: str | None) -> bool:
    return op is not None and op.startswith("triton_")


def _replays(trace: Trace) -> Iterator[_Replay]:
    graphs = _named(trace.host_events, GRAPH_LAUNCH).arg_true()
    events = trace.device_events.filter(pl.col("launch").is_in(graphs.implode()))
    for (launch,), ran in events.sort("start_ns", "id").group_by("launch", maintain_order=True):
        if ran["stream"].n_unique() == 1 and isinstance(launch, int):
            names = ran["name"].cast(pl.String).to_list()
            kinds = "".join(map(_kind, ran["kind"], names))
            yield _Replay(launch, ran["step"][0], ran["id"].to_list(), kinds, names)


def _kind(kind: str, name: str) -> str:
    """The letter of a device event, as of the call that put it into the graph: small copies and memsets may
    run as kernels of the driver there (``memcpy32_post``)."""
    driver = DRIVER_KERNEL.match(name)
    return "s" if "memset" in (kind, driver and driver[1]) else "c" if kind == "memcpy" or driver else "k"


def _joined(trace: Trace, joined: Sequence[tuple[_Replay, Capture]]) -> Trace:
    """The trace with the captured events behind its own, and the ops of replayed work."""
    hosts, lanes, arguments = [trace.host_events], [trace.lanes], [trace.host_arguments]
    op_of: dict[int, int | None] = {}
    for capture in {id(capture.calls): capture for _, capture in joined}.values():
        events, row_of = _events(capture, sum(map(len, hosts)), sum(map(len, lanes)))
        ops = [None if op is None else row_of.get(op) for op in capture.ops]
        for replay, of in joined:
            if of is capture:
                op_of |= dict(zip(replay.events, ops, strict=False))
        lane = capture.trace.lanes[capture.lane : capture.lane + 1]
        lanes.append(lane.with_columns(pl.lit(events["lane"][0], pl.UInt32).alias("id")))
        hosts.append(events.with_columns(pl.col("arguments") + sum(map(len, arguments))))
        arguments.append(capture.trace.host_arguments)
    device = trace.device_events
    op = pl.Series([op_of.get(row) for row in range(len(device))], dtype=pl.UInt32)
    return replace(
        trace,
        host_events=schema.conform(pl.concat(hosts), schema.HELD["host_events"]),
        lanes=schema.conform(pl.concat(lanes), schema.LANES),
        host_arguments=pl.concat(arguments),
        device_events=device.with_columns(op=pl.coalesce(op, "op")),
    )


def _events(capture: Capture, first: int, lane: int) -> tuple[pl.DataFrame, dict[int, int]]:
    """Rows of another trace that hold what a capture recorded, the ``first`` of this number and all of this
    ``lane``; and their numbers there by those they had."""
    host = capture.trace.host_events
    inside = host.filter(
        (pl.col("lane") == capture.lane)
        & pl.col("start_ns").is_between(capture.start_ns, capture.end_ns)
        & pl.col("category").cast(pl.String).is_in([*CAPTURED])
    )
    row_of = {old: new for new, old in enumerate(inside["id"], first)}
    parents = [None if parent is None else row_of.get(parent) for parent in inside["parent"]]
    category = inside["category"].cast(pl.String).replace_strict(CAPTURED).cast(pl.Categorical)
    events = inside.with_columns(
        category,
        pl.Series("id", range(first, first + len(inside)), pl.UInt32),
        pl.Series("parent", parents, pl.UInt32),
        pl.lit(lane, pl.UInt32).alias("lane"),
    )
    return events, row_of
