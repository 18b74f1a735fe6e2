"""The critical path: of all that a step consists of, what its time is the sum of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.engine import NEVER, Round, circle, from_one, matrix, once
from kinetoscope.analysis.replay.graph import CollectiveSync, ReplayGraph, SyncPoint, WorkBlock
from kinetoscope.analysis.replay.host import is_op, logical_threads
from kinetoscope.analysis.replay.numbers import State
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

# Sums of some thousand doubles of nanoseconds agree to this.
EQUAL_NS = 0.5

HOST, ARRIVING, WORK, RETURN, TRANSFER, STARTING = (
    "host", "arriving", "work", "return", "transfer", "starting",
)  # fmt: skip


class PathPiece(NamedTuple):
    """A segment of the path, ``ns`` long: host time of a segment between its start and an instant of the
    recording (``until``), or what happened to rows of the graph's ``work``."""

    sort: str
    ns: float
    segment: int = -1
    until: int = 0
    rows: tuple[int, int] = (0, 0)  # from, and up to but not including
    call: tuple[int, int] | None = None


class _Walk(Struct, frozen=True):
    state: State
    round: Round
    blocks: dict[int, tuple[WorkBlock, int | None]]  # with the block before it on its stream
    syncs: dict[int, SyncPoint]  # by the segment that follows
    collectives: dict[int, tuple[CollectiveSync, float]]
    rows: dict[int, tuple[int, int, int]]  # of each block: from, up to, and whose launch it waits for longest


def repeated(state: State) -> tuple[list[PathPiece], int]:
    """The path of rounds that repeat, and of how many rounds it is."""
    around = circle(matrix(state.graph, state.numbers))
    pieces: list[PathPiece] = []
    for before, clock in zip([around[-1], *around], around, strict=False):
        pieces += _back(_walk(state, from_one(state.graph, state.numbers, before)), clock)
    return pieces, len(around)


def single(state: State, rank: int) -> list[PathPiece]:
    """The path of one round: to the last of a rank's clocks."""
    graph = state.graph
    walk = _walk(state, once(graph, state.numbers, graph.origin))
    own = [clock for clock, owner in enumerate(graph.ranks) if owner == rank]
    if not own:
        return []
    last = max(own, key=lambda clock: walk.round.clocks[clock])
    pieces = list(_back(walk, last))
    # A path that leads to another rank begins where that one's recording does.
    apart = walk.round.clocks[last] - graph.origin[last] - sum(piece.ns for piece in pieces)
    return [*pieces, PathPiece(STARTING, apart)] if apart > EQUAL_NS else pieces


def _walk(state: State, done: Round) -> _Walk:
    blocks: dict[int, tuple[WorkBlock, int | None]] = {}
    syncs: dict[int, SyncPoint] = {}
    collectives: dict[int, tuple[CollectiveSync, float]] = {}
    newest: dict[int, int] = {}
    transfers = iter(state.numbers.transfer)
    for instruction in state.graph.program:
        if isinstance(instruction, WorkBlock):
            blocks[instruction.block] = instruction, newest.get(instruction.stream)
            newest[instruction.stream] = instruction.block
        elif isinstance(instruction, SyncPoint):
            syncs[instruction.following] = instruction
        else:
            collectives |= dict.fromkeys(instruction.blocks, (instruction, next(transfers)))
    cost = pl.col("pause_ns") + pl.col("work_ns")
    late = pl.col("ready") + pl.col("work_ns") - cost.cum_sum()
    # Of launches that hold a block up as long as each other the last.
    each = state.work.group_by("block", maintain_order=True).agg(pl.len(), back=late.reverse().arg_max())
    rows = {
        block: (end - count, end, end - 1 - (count - 1 if back is None else back))
        for (block, count, back), end in zip(each.iter_rows(), each["len"].cum_sum(), strict=True)
    }
    return _Walk(state, done, blocks, syncs, collectives, rows)


def _back(walk: _Walk, clock: int) -> Iterator[PathPiece]:
    """The pieces of the path to a clock's end, last first."""
    threads = len(walk.state.graph.first)
    segment: int | None = None
    block: int | None = None
    if clock < threads:
        segment = walk.state.graph.last[clock]
    else:
        own = [b.block for b, _ in walk.blocks.values() if b.stream == clock - threads]
        block = own[-1] if own else None
    while segment is not None or block is not None:
        if segment is not None:
            pieces, segment, block = _before_segment(walk, segment)
        else:
            pieces, segment, block = _before_block(walk, block or 0)
        yield from pieces


Step = tuple[list[PathPiece], int | None, int | None]


def _before_segment(walk: _Walk, segment: int) -> Step:
    """The pieces before a segment's start: the segment before it, or work that its call waited for."""
    sync = walk.syncs.get(segment)
    if sync is None:
        return [], None, None
    ended, length = walk.round.ended, walk.state.numbers.host[sync.segment]
    pieces = [PathPiece(RETURN, sync.tail_ns, call=sync.call)] if sync.tail_ns else []
    latest = max(sync.targets, key=lambda block: ended[block], default=None)
    if (
        latest is not None
        and sync.call not in walk.state.numbers.free
        and ended[latest] > walk.round.begun[sync.segment] + length
    ):
        return pieces, None, latest
    if sync.batch_ns and sync.call not in walk.state.numbers.free:
        pieces.append(PathPiece(RETURN, sync.batch_ns, call=sync.call))
    until = int(walk.state.graph.segments["end_ns"][sync.segment])
    return [*pieces, PathPiece(HOST, length, sync.segment, until)], sync.segment, None


def _before_block(walk: _Walk, block: int) -> Step:
    """The pieces before a block's end: its launches, the work before it on its stream, or on another."""
    pieces: list[PathPiece] = []
    ended = walk.round.ended[block]
    if block in walk.collectives:
        collective, transfer = walk.collectives[block]
        block = max(collective.blocks, key=lambda other: walk.round.arrived[other])
        ended = walk.round.arrived[block]
        row = collective.rows[collective.blocks.index(block)]
        pieces.append(PathPiece(TRANSFER, transfer, rows=(row, row + 1)))
    instruction, previous = walk.blocks[block]
    first, after, launch = walk.rows[block]
    segment = instruction.segment
    begun = walk.round.begun[segment] if segment >= 0 else NEVER
    sources = [*instruction.sources, *([] if previous is None else [previous])]
    latest = max(sources, key=lambda source: walk.round.ended[source], default=None)
    by_launch = begun + walk.state.numbers.ends[block]
    if by_launch > NEVER and by_launch >= ended - EQUAL_NS:
        ready = float(walk.state.work["ready"][launch])
        latency = min(ready, float(walk.state.graph.work["latency_ns"][launch]))
        until = int(walk.state.graph.work["point_ns"][launch])
        pieces += [
            PathPiece(WORK, walk.state.numbers.ends[block] - ready, rows=(launch, after)),
            PathPiece(ARRIVING, latency, rows=(launch, launch + 1)),
            PathPiece(HOST, ready - latency, segment, until),
        ]
        return pieces, segment, None
    pieces.append(PathPiece(WORK, walk.state.numbers.block[block], rows=(first, after)))
    return pieces, None, latest


NODE = "autograd::engine::evaluate_function: "
BETWEEN = "host: between ops"
PAUSES = "device: pauses between kernels"
OTHER = "before another rank began to be recorded"
LAUNCHES = "launches on their way to the device"

TABLE = pl.Enum(["host_events", "device_events"])
PARTS = {"text": pl.Categorical, "ns": pl.Float64, "table": TABLE, "id": pl.UInt32}
CAST = typed(PARTS)
NO_OPS = pl.DataFrame(
    schema={"id": pl.UInt32, "name": pl.Categorical, "start_ns": pl.Int64, "end_ns": pl.Int64}
)


SHOWN_EVENTS = 12  # of a part of the path; their number is given as well


# Where replayed kernels of several streams would share the device more than they were recorded to.
NOT_REPLAYED = "idle time of the steps as they were timed, beyond that of the recorded ones"
OTHER_STREAMS = "kernels of other streams, which share the device"
LATE_BATCHES = "waiting for the data loader's workers"


class PathPart(Struct, frozen=True):
    """A part of the critical path: what took ``us`` of the step, and the first of the ``count`` events (rows
    of ``table``, ``host_events`` or ``device_events``, of this ``rank``) that it is made of. Of the time
    between ops, ``nexts`` are the rows of the ops that followed, and the µs before each."""

    text: str
    us: float
    rank: int
    table: str
    ids: tuple[int, ...]
    count: int
    nexts: tuple[list[int], list[float]] | None = None


def path_parts(
    state: State, pieces: Sequence[PathPiece], traces: Mapping[int, Trace], rank: int, scale: float
) -> list[PathPart]:
    """Pieces merged by their text, longest first. ``rank``: whose step it is; ``scale``: µs per ns of the
    path."""
    parts = [
        part.with_columns(rank=pl.lit(other, pl.Int32))
        for other, trace in traces.items()
        for part in (_device(state, pieces, trace), _host(state.graph, pieces, trace))
    ]
    before = [(OTHER, p.ns, "host_events", None) for p in pieces if p.sort == STARTING]
    own = pl.lit(rank, pl.Int32).alias("rank")
    parts.append(pl.DataFrame(before, schema=PARTS, orient="row").with_columns(own))
    pieces_of = pl.concat(parts)
    is_between = pl.col("text") == BETWEEN
    nexts = (
        pieces_of.filter(is_between)
        .drop_nulls("id")
        .group_by("rank", "id", maintain_order=True)
        .agg(us=pl.col("ns").sum() * scale)
        .sort("us", "id", descending=[True, False])
    )
    after = {
        owner: (rows["id"].to_list(), rows["us"].to_list())
        for (owner,), rows in nexts.group_by("rank", maintain_order=True)
    }
    merged = (
        pieces_of.with_columns(id=pl.when(~is_between).then("id"))
        .group_by("text", "rank", "table", maintain_order=True)
        .agg(pl.col("ns").sum(), pl.col("id").drop_nulls().unique().sort())
        .filter(pl.col("ns") > 0)
        .sort("ns", pl.col("text").cast(pl.String), "rank", descending=[True, False, False])
    )
    shown = merged.with_columns(pl.col("id").list.head(SHOWN_EVENTS), count=pl.col("id").list.len())
    return [
        PathPart(
            text, ns * scale, owner, table, tuple(ids), count, after.get(owner) if text == BETWEEN else None
        )
        for text, owner, table, ns, ids, count in shown.iter_rows()
    ]


def _device(state: State, pieces: Sequence[PathPiece], trace: Trace) -> pl.DataFrame:
    """Device parts: kernels by the op that launched them, pauses, launches under way."""
    work = state.work.select("rank", "id", "work_ns")
    sorts = (WORK, ARRIVING, TRANSFER)
    spans = [(p.sort, p.ns, *p.rows) for p in pieces if p.sort in sorts]
    columns = {"sort": pl.Enum(sorts), "ns": pl.Float64, "row": pl.Int64, "after": pl.Int64}
    table = pl.DataFrame(spans, columns, orient="row").with_row_index("piece")
    rows = table.select("piece", "sort", "ns", row=pl.int_ranges("row", "after")).explode("row")
    rows = rows.hstack(work[rows["row"].cast(pl.UInt32)]).filter(pl.col("rank") == trace.rank)
    if rows.is_empty():
        return pl.DataFrame(schema=PARTS)
    name = _names(trace)[rows["id"]]
    rows = rows.with_columns(text=name)
    worked = rows.filter(pl.col("sort") == WORK)
    pauses = worked.group_by("piece").agg(pl.col("ns").first() - pl.col("work_ns").sum())
    whole = rows.filter(pl.col("sort") != WORK).with_columns(
        text=pl.when(pl.col("sort") == ARRIVING).then(pl.lit(LAUNCHES, pl.Categorical)).otherwise("text")
    )
    of = pl.lit("device_events").alias("table")
    return pl.concat(
        [
            worked.select("text", pl.col("work_ns").alias("ns"), of, "id"),
            whole.select("text", "ns", of, "id"),
            pauses.select(pl.lit(PAUSES, pl.Categorical).alias("text"), "ns", of, id=pl.lit(None, pl.UInt32)),
        ]
    ).select(CAST)


@remembered
def _names(trace: Trace) -> pl.Series:
    """Names of device events in a path: the op's kernels, or the event's own name."""
    op = trace.host_events["name"][trace.device_events["op"]].alias("op")
    named = trace.device_events.select("kind", op, "name")
    # Events are many, and what they are called few.
    own, kernels = pl.col("name").cast(pl.String), pl.col("op").cast(pl.String) + " kernels"
    text = pl.when(pl.col("kind") == "kernel").then(pl.coalesce(kernels, own)).otherwise(own)
    texts = named.unique().with_columns(text=text.cast(pl.Categorical))
    return named.join(texts, on=named.columns, how="left", nulls_equal=True, maintain_order="left")["text"]


def _host(graph: ReplayGraph, pieces: Sequence[PathPiece], trace: Trace) -> pl.DataFrame:
    """Host parts: outermost ops and calls, what lies between them, and returning from waits."""
    names = trace.host_events["name"]
    returns = [
        (f"host: {names[p.call[1]]}", p.ns, "host_events", p.call[1])
        for p in pieces
        if p.sort == RETURN and p.call and p.call[0] == trace.rank
    ]
    spans = [(p.segment, p.ns, p.until) for p in pieces if p.sort == HOST and p.ns > 0]
    segments = graph.segments.with_row_index("segment").filter(pl.col("rank") == trace.rank)
    hosts = pl.DataFrame(
        spans, schema={"segment": pl.UInt32, "ns": pl.Float64, "until": pl.Int64}, orient="row"
    ).join(segments.select("segment", "thread", "start_ns"), on="segment")
    ops = _outermost(trace) if len(hosts) else {}
    spent = [
        _spent(hosts.filter(pl.col("thread") == thread), ops.get(thread, NO_OPS))
        for thread in hosts["thread"].unique()
    ]
    return pl.concat([pl.DataFrame(returns, schema=PARTS, orient="row"), *spent])


def _spent(hosts: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """A thread's segments, ``ns`` long by now, shared out among ops that ran in them and what lay between."""
    first = ops["end_ns"].search_sorted(hosts["start_ns"], side="right")
    after = ops["start_ns"].search_sorted(hosts["until"], side="left")
    pieces = hosts.with_row_index("piece").with_columns(first=first, after=after)
    inside = pieces.filter(pl.col("after") > pl.col("first")).select(
        "piece", "ns", "start_ns", "until", row=pl.int_ranges("first", "after")
    )
    inside = inside.explode("row")
    ran = ops.select("name", "id", opened="start_ns", closed="end_ns")[inside["row"]]
    overlap = pl.min_horizontal("closed", "until") - pl.max_horizontal("opened", "start_ns")
    length = (pl.col("until") - pl.col("start_ns")).clip(lower_bound=1)
    inside = pl.concat([inside, ran], how="horizontal").with_columns(took=overlap * pl.col("ns") / length)
    by_name = inside.group_by("name").agg(pl.col("took").sum(), "id")
    text = pl.lit("host: ") + pl.col("name").cast(pl.String).str.strip_prefix(NODE)
    named = by_name.select(
        text.cast(pl.Categorical).alias("text"),
        pl.col("took").alias("ns") / pl.col("id").list.len(),
        pl.lit("host_events").alias("table"),
        "id",
    ).explode("id")
    left = float(hosts["ns"].sum()) - float(inside["took"].sum())
    before = _pauses(inside, pieces, ops)
    rest = pl.DataFrame(
        {"ns": [max(0.0, left - float(before["ns"].sum()))], "id": [None]}, schema=before.schema
    )
    between = pl.concat([before, rest]).with_columns(
        pl.lit(BETWEEN).alias("text"), table=pl.lit("host_events")
    )
    return pl.concat([table.select(CAST) for table in (named, between)])


def _pauses(inside: pl.DataFrame, pieces: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """The time (``ns``, by now) before each op (``id``) in which its thread was in no other."""
    ended = pl.min_horizontal("closed", "until")
    since = ended.shift(1).over("piece").fill_null(pl.col("start_ns"))
    before = pl.max_horizontal("opened", "start_ns") - since
    share = pl.col("ns") / (pl.col("until") - pl.col("start_ns")).clip(lower_bound=1)
    last = inside.group_by("piece").agg(ended=ended.last())
    rest = pieces.join(last, on="piece", how="left", maintain_order="left").filter(pl.col("after") < len(ops))
    after = rest.select((pl.col("until") - pl.coalesce("ended", "start_ns")) * share)
    after = after.to_series().alias("ns").to_frame().with_columns(ops["id"][rest["after"]])
    return pl.concat([inside.select(ns=before * share, id="id"), after]).filter(pl.col("ns") > 0)


@remembered
def _outermost(trace: Trace) -> dict[int, pl.DataFrame]:
    """The ops and calls of each thread that are inside no other."""
    host = trace.host_events
    counts = is_op(trace)
    inner = counts[host["parent"]].fill_null(False)  # most, and known before anything is sorted
    own = host.select("id", "lane", "name", "start_ns", "duration_ns").filter(counts & ~inner)
    own = own.join(logical_threads(trace), on="lane")
    own = own.select("id", "thread", "name", "start_ns", END)
    outer = intervals.outermost(own, ["thread"])
    return {int(key[0]): table for key, table in outer.partition_by("thread", as_dict=True).items()}
