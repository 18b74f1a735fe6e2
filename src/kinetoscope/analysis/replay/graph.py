"""The replayed work of one or several ranks as a program: blocks of device work and the syncs between them.

The clocks that a program moves are those of *threads* (host threads) and *streams*. Between two syncs a
thread's clock only runs on, and a stream's does one block after another: for the clocks ``h`` of the thread
and ``s`` of the stream a block gives

    s = max(s + D, h + M),

D the block's work with its pauses, M the latest that any of its launches would have it end. Both are sums and
maxima over its rows, found for all blocks at once; only syncs are gone through one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple
from weakref import WeakSet

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.rows import constant
from kinetoscope.analysis.replay.device_work import delays, dependencies, launched
from kinetoscope.analysis.replay.host import BEFORE, HostSegments, logical_threads, quiet, segments, waits
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed, whole
from kinetoscope.trace.threads import PIECE

ROWS = {
    "row": pl.Int64,
    "id": pl.UInt32,
    "stream": pl.UInt32,
    "segment": pl.Int64,
    "point_ns": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "latency_ns": pl.Int64,
    "pause_ns": pl.Int64,
    "work_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "lost_ns": pl.Int64,
}


# What the numbers of a graph come from; it lives as long as rules ask, so it is kept narrow.
NARROW = ["block", "segment", "latency_ns", "pause_ns", "work_ns", "duration_ns", "lost_ns"]
REPLAYED = ["rank", "id", "meets", "point_ns", *NARROW]


def inside(within: Spans) -> pl.Expr:
    """Whether work (rows of ``delays``) was launched inside the spans; what lost its launch, whether it began
    there. What its stream still had to do when the recording began is the work of steps before."""
    if not within.steps:
        return pl.lit(True)
    at = pl.coalesce("point_ns", "start_ns")
    known = pl.col("point_ns").is_not_null()
    left_over = ~known.cum_max().over("stream") & known.any()
    return pl.any_horizontal(at.is_between(start, end, "left") for start, end in within.bounds) & ~left_over


def blocks(part: RankSpans, segments: pl.DataFrame, met: pl.Series) -> pl.DataFrame:
    """Device work inside the spans, columns as in ``ROWS``, with

    - ``segment``: from which it was launched; null where no launch was recorded,
    - ``block``: work of one stream and one segment that nothing outside waits for, nor waits for anything,
      but at its ends,
    - ``meets``: whether it is one of the collectives ``met``, each a block of its own,
    - ``key``: where its place in the program is, by the recording's clock.

    Every stream begins with a row without work: what it was given before.
    """
    trace, within = part.trace, part.spans
    columns = [name for name in ROWS if name != "segment"]
    streams = delays(trace)["stream"].unique()
    table = delays(trace).select(*columns, "lane", "before_ns")
    if within.steps:  # else it is all of it
        table = table.filter(inside(within))
    if part.only:
        delays.forget(trace)
        launched.forget(trace)
    table = table.join(logical_threads(trace), on="lane", how="left", maintain_order="left")
    table = _launching(table, segments)
    # What begins a recording has nothing to pause after; what was launched before it, no launch either.
    left_over = pl.when(pl.col("point_ns").is_null() & (not within.steps)).then(
        pl.col("start_ns") - within.bounds[0][0]
    )
    pause = pl.when(pl.col("before_ns").is_null()).then(left_over.fill_null(0)).otherwise("pause_ns")
    table = _opened(streams, table.with_columns(pause_ns=pause)).with_columns(
        meets=pl.col("id").is_in(met.implode()).fill_null(False)
    )
    before = pl.col("row").is_in(dependencies(trace)["row"].implode())
    ends = pl.concat([dependencies(trace)["source"], waits(trace)["row"]]).drop_nulls().unique()
    after = pl.col("row").is_in(ends.implode()) | (pl.col("row") == BEFORE) | pl.col("meets")
    changes = (pl.col(name).ne_missing(pl.col(name).shift(1)) for name in ("stream", "segment"))
    cut = pl.any_horizontal(*changes, before, pl.col("meets"), after.shift(1, fill_value=True))
    key = pl.max_horizontal(
        pl.when("meets").then("start_ns").otherwise("end_ns"), segments["passed_ns"].gather(table["segment"])
    )
    return table.with_columns(cut.cum_sum().alias("block") - 1, key=key).with_columns(
        pl.col("key").cum_max().over("stream")
    )


def _opened(streams: pl.Series, table: pl.DataFrame) -> pl.DataFrame:
    zeros = [pl.lit(0, ROWS[name]).alias(name) for name in ("latency_ns", "pause_ns", "work_ns", "lost_ns")]
    long_ago = pl.lit(0, pl.Int64)
    openings = streams.to_frame().select(
        pl.lit(BEFORE, pl.Int64).alias("row"),
        "stream",
        long_ago.alias("start_ns"),
        long_ago.alias("end_ns"),
        *zeros,
        duration_ns=pl.lit(1, pl.Int64),
    )
    rows = table.select(typed(ROWS))
    both = pl.concat([openings.cast({"stream": pl.UInt32}), rows], how="diagonal").select(list(ROWS))
    # Rows are in order of their streams: to sort those of one would only copy them.
    return both if len(streams) == 1 else both.sort("stream", "row", maintain_order=True)


def _launching(table: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Adds ``segment``. A launch inside a call that waited came when the call returned."""
    begun = segments.with_row_index("segment").select("segment", "thread", opened="start_ns", closed="end_ns")
    # A launch at the instant of a sync came before it, as a copy's that the sync waits for.
    begun = begun.unique(["thread", "opened"], keep="first", maintain_order=True)
    points = table.select("point_ns", "thread").with_row_index("order").sort("point_ns")
    from_these = points.join_asof(
        begun.sort("opened"), left_on="point_ns", right_on="opened", by="thread", check_sortedness=False
    ).sort("order")
    found = table.with_columns(from_these["segment"], from_these["closed"])
    late = (pl.col("point_ns") > pl.col("closed")) & (pl.col("segment") + 1 < len(segments))
    found = found.with_columns(segment=pl.col("segment") + late.cast(pl.UInt32))
    opens = segments["start_ns"].gather(found["segment"])
    later = pl.max_horizontal("point_ns", opens) - pl.col("point_ns")
    return found.with_columns(
        latency_ns=(pl.col("latency_ns") - later).clip(lower_bound=0),
        point_ns=pl.col("point_ns") + later,
        # Without a launch it goes with the work before it.
        segment=pl.col("segment").forward_fill().over("stream"),
    )


def ends_with(work: pl.DataFrame, targets: pl.DataFrame) -> pl.Series:
    """The block that ends with each target (``stream`` and ``row``, see ``Passed``): its own, or that of the
    last work of its stream before it that is replayed."""
    rows = work.select("stream", "row", "block").sort("row")
    wanted = targets.select(pl.col("stream").cast(pl.UInt32), pl.col("row").cast(pl.Int64))
    found = wanted.with_row_index("order").sort("row")
    return found.join_asof(rows, on="row", by="stream", check_sortedness=False).sort("order")["block"]


def sources(trace: Trace, work: pl.DataFrame) -> dict[int, list[int]]:
    """The blocks of other streams that end before each block begins, by block."""
    linked = dependencies(trace).with_columns(pl.col("row").cast(pl.Int64))
    linked = linked.join(work.select("row", "block"), on="row")
    before = pl.col("source").cast(pl.Int64).fill_null(BEFORE)
    ends = ends_with(work, linked.select("stream", row=before)).alias("source")
    return dict(linked.select("block", ends).group_by("block").agg("source").iter_rows())


def gone_until(steps: pl.DataFrame, instants: pl.Series) -> pl.Series:
    """How many ns the shares of a thread's time come to before each instant (ns, sorted)."""
    if steps.is_empty():
        return constant(0.0, len(instants), pl.Float64)
    at, slope = steps["at_ns"], steps["share"]
    first = whole(at[0])
    since = (at - first).cast(pl.Float64)  # exact: of a recording, not of an age
    # Between two steps what is gone is a line: by its slope, and where it meets the first step.
    passed = (slope.head(-1) * (since.slice(1) - since.head(-1))).cum_sum()
    height = pl.concat([constant(0.0, 1, pl.Float64), passed]) - slope * since
    lines = pl.DataFrame({"at": at, "height": height, "slope": slope})
    pieces = (instants.slice(start, PIECE) for start in range(0, max(1, len(instants)), PIECE))
    each = (piece.to_frame("at").join_asof(lines, on="at", check_sortedness=False) for piece in pieces)
    found = [(line["height"] + line["slope"] * (line["at"] - first)) for line in each]
    return pl.concat(found).fill_null(0)


class WorkBlock(NamedTuple):
    """Work of one stream, launched from one segment of a thread."""

    block: int
    stream: int
    segment: int
    sources: tuple[int, ...]  # blocks of other streams that end before it begins


class SyncPoint(NamedTuple):
    """Where one segment of a thread ends and the next begins, once blocks have ended."""

    segment: int
    following: int
    call: tuple[int, int] | None  # rank and row of the call that waits
    targets: tuple[int, ...]
    tail_ns: float  # what the call takes once they have
    batch_ns: float = 0.0  # how long it waited for a data loader's workers


class CollectiveSync(NamedTuple):
    """A collective: all ranks' blocks begin when the last may, and take as long as the data to move."""

    blocks: tuple[int, ...]
    streams: tuple[int, ...]
    rows: tuple[int, ...]
    transfer_ns: float


Instruction = WorkBlock | SyncPoint | CollectiveSync


class ReplayGraph(Struct, frozen=True, dict=True):
    """A program with the tables that its numbers come from.

    Args:
        work: one row per device event, ordered by block: the columns ``REPLAYED``, as ``blocks`` has them.
        segments: of host time, numbered by row (see ``segments``).
        lanes: ``rank``, ``lane``, ``thread``.
        first, last: the first and the last segment of each thread.
        origin: by clock (threads', then streams'), when what is replayed of its rank began, ns after the
            first of all.
        ranks: by clock, whose it is.
        streams: how many streams there are.
        program: in an order that follows all edges.
        traces: of its ranks, which it does not keep.
    """

    work: pl.DataFrame
    segments: pl.DataFrame
    lanes: pl.DataFrame
    first: tuple[int, ...]
    last: tuple[int, ...]
    origin: tuple[float, ...]
    ranks: tuple[int, ...]
    streams: int
    program: tuple[Instruction, ...]
    lost_ns: int
    traces: WeakSet[Trace]

    @cached_property
    def late_batches(self) -> frozenset[tuple[int, int]]:
        """The calls (rank, row) that waited for a data loader's workers."""
        syncs = (one for one in self.program if isinstance(one, SyncPoint) and one.batch_ns)
        return frozenset(sync.call for sync in syncs if sync.call is not None)

    @cached_property
    def pieces(self) -> list[slice]:
        """All rows of ``work``, some thousand at a time, and those of a block together."""
        block = self.work["block"]
        starts = block.search_sorted(block.gather_every(PIECE), side="left").unique().to_list() or [0]
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(block)], strict=True)]

    @cached_property
    def places(self) -> dict[int, pl.Series]:
        """Rows of ``work`` for each of a rank's ``device_events``, by rank; null where it is not replayed."""
        rows = self.work.select("rank", "id", row=pl.int_range(pl.len(), dtype=pl.UInt32))
        found: dict[int, pl.Series] = {}
        for (rank,), own in rows.drop_nulls("id").group_by("rank"):
            none = constant(None, whole(own["id"].max()) + 1, pl.UInt32)
            found[whole(rank)] = none.scatter(own["id"], own["row"])
        return found

    @cached_property
    def lanes_of(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for rank, thread, lane in self.lanes.select("rank", "thread", "lane").iter_rows():
            found.setdefault((rank, thread), []).append(lane)
        return found

    @cached_property
    def instants(self) -> dict[tuple[int, int], pl.DataFrame]:
        """The instants at which host time is looked up, by rank and thread, in order: ``at`` (ns) and
        ``slot``, counted over first all launches (rows of ``work``), then all segments' starts, then their
        ends."""
        launches = self.work.select(
            "rank", thread=self.segments["thread"].gather(self.work["segment"]), at="point_ns"
        )
        bounds = [self.segments.select("rank", "thread", at=bound) for bound in ("start_ns", "end_ns")]
        every = pl.concat([launches, *bounds]).with_row_index("slot").drop_nulls().sort("at")
        return {
            (whole(rank), whole(thread)): own.select("at", "slot")
            for (rank, thread), own in every.group_by("rank", "thread", maintain_order=True)
        }

    @cached_property
    def order(self) -> pl.Series:
        """The row of each slot among the ``instants`` of all threads, one below the other; null: in none."""
        slots = pl.concat(
            [pl.Series("slot", [], pl.UInt32), *(own["slot"] for own in self.instants.values())]
        )
        none = constant(None, len(self.work) + 2 * len(self.segments), pl.UInt32)
        return none.scatter(slots, pl.int_range(len(slots), dtype=pl.UInt32, eager=True))

    def until(self, steps: Mapping[tuple[int, int], pl.DataFrame]) -> tuple[pl.Series, ...]:
        """The time that shares of threads' time (by rank and thread) come to, ns, before each of the
        ``instants``, in their order; before each segment's start; and before its end."""
        each = [
            gone_until(steps[key], own["at"]) if key in steps else constant(0.0, len(own), pl.Float64)
            for key, own in self.instants.items()
        ]
        until = pl.concat([pl.Series([], dtype=pl.Float64), *each], rechunk=True)
        bounds = until[self.order.slice(len(self.work))]
        return until, bounds.head(len(self.segments)), bounds.tail(len(self.segments))

    @cached_property
    def quiet(self) -> dict[tuple[int, int], pl.DataFrame]:
        """When threads, by rank and number, do what a profiler makes no slower (see ``host.quiet``): asked
        for where the host is replayed at another pace than recorded."""
        return {key: own for trace in self.traces for key, own in quiet(trace).items()}

    @cached_property
    def quiet_ns(self) -> tuple[pl.Series, ...]:
        """The ``quiet`` time before each instant (see ``until``)."""
        return self.until(self.quiet)


class RankSpans(NamedTuple):
    """One rank's share of a graph. ``clock_ns``: by how much its clock is ahead of the others';
    ``handover_ns``: see ``host.segments``; ``only``: no other graph is made of the trace, and what graphs are
    made of is not kept."""

    trace: Trace
    spans: Spans
    clock_ns: int = 0
    handover_ns: float | None = None
    only: bool = False


class _Share(NamedTuple):
    """A part with its numbers counted on from those of the parts before it."""

    part: RankSpans
    work: pl.DataFrame
    segments: HostSegments
    program: list[Timed]
    segment: int
    streams: int


# An instruction's place in the program: when it happened, and of what happened together the order.
Timed = tuple[int, int, Instruction]


def build(parts: Sequence[RankSpans], collectives: pl.DataFrame | None = None) -> ReplayGraph:
    """The graph of ranks that meet in ``collectives`` (``instance``, ``rank``, ``id`` of the device event,
    ``transfer_ns``; None: each rank's take as long as they were recorded)."""
    collectives = _complete(NO_COLLECTIVES.clear() if collectives is None else collectives, parts)
    shares: list[_Share] = []
    segment = stream = block = 0
    for part in parts:
        own = _share(part, collectives, segment, stream, block)
        shares.append(own)
        segment += len(own.segments.table)
        stream += own.streams
        block += own.work["block"].n_unique()
    work = pl.concat([share.work for share in shares])
    program = [instruction for share in shares for instruction in share.program]
    program += _collectives(work, collectives, {part.trace.rank: part.clock_ns for part in parts})
    owners = [share for share in shares for _ in share.segments.ends]
    owners += [share for share in shares for _ in range(share.streams)]
    began = [share.part.spans.bounds[0][0] - share.part.clock_ns for share in owners]
    lanes = [logical_threads(p.trace).with_columns(rank=pl.lit(p.trace.rank, pl.Int32)) for p in parts]
    return ReplayGraph(
        work.select(REPLAYED).with_columns(work[name].shrink_dtype() for name in NARROW).rechunk(),
        pl.concat([share.segments.table for share in shares]),
        pl.concat(lanes),
        tuple(start + share.segment for share in shares for start, _ in share.segments.ends),
        tuple(end + share.segment for share in shares for _, end in share.segments.ends),
        tuple(float(start - min(began)) for start in began),
        tuple(share.part.trace.rank for share in owners),
        stream,
        tuple(instruction for *_, instruction in sorted(program, key=lambda timed: timed[:2])),
        int(work["lost_ns"].sum()),
        WeakSet(part.trace for part in parts),
    )


NO_COLLECTIVES = pl.DataFrame(
    schema={"instance": pl.UInt32, "rank": pl.Int32, "id": pl.UInt32, "transfer_ns": pl.Int64}
)


def _share(part: RankSpans, collectives: pl.DataFrame, segment: int, stream: int, block: int) -> _Share:
    trace, clock = part.trace, part.clock_ns
    own = segments(trace, part.spans, part.handover_ns)
    met = collectives["id"].filter(collectives["rank"] == trace.rank)
    work = blocks(part, own.table, met)
    targets = [(sync.segment, *target) for sync in own.syncs for target in sync.targets]
    wanted = pl.DataFrame(targets, schema=["segment", "stream", "row"], orient="row")
    ends: dict[int, list[int]] = {}
    for after, end in zip(wanted["segment"], ends_with(work, wanted), strict=True):
        ends.setdefault(after, []).append(end + block)
    program: list[Timed] = [
        (
            sync.at_ns - clock,
            1,
            SyncPoint(
                sync.segment + segment,
                sync.segment + segment + 1,
                None if sync.call is None else (trace.rank, sync.call),
                tuple(ends.get(sync.segment, ())),
                float(sync.tail_ns),
                float(sync.batch_ns),
            ),
        )
        for sync in own.syncs
    ]
    before = sources(trace, work)
    each = work.group_by("block", maintain_order=True).agg(
        pl.col("stream").first(), pl.col("segment").first(), pl.col("key").max()
    )
    for number, of, at, key in each.iter_rows():
        linked = tuple(source + block for source in before.get(number, ()))
        placed = WorkBlock(number + block, of + stream, -1 if at is None else at + segment, linked)
        program.append((key - clock, 0, placed))
    work = work.with_columns(
        pl.col("block") + block,
        pl.col("segment") + segment,
        pl.col("stream") + stream,
        rank=pl.lit(trace.rank, pl.Int32),
    )
    return _Share(part, work, own, program, segment, each["stream"].n_unique())


def _complete(collectives: pl.DataFrame, parts: Sequence[RankSpans]) -> pl.DataFrame:
    """The collectives in which each of their ranks took part inside its spans."""
    if collectives.is_empty():
        return collectives
    ids = [
        delays(part.trace).filter(inside(part.spans)).select("id", rank=pl.lit(part.trace.rank, pl.Int32))
        for part in parts
    ]
    ranks = collectives.with_columns(ranks=pl.len().over("instance"))
    found = ranks.join(pl.concat(ids), on=["rank", "id"], how="semi")
    return found.filter(pl.len().over("instance") == pl.col("ranks")).drop("ranks")


def _collectives(work: pl.DataFrame, collectives: pl.DataFrame, clocks: Mapping[int, int]) -> list[Timed]:
    clock = pl.col("rank").replace_strict(clocks, return_dtype=pl.Int64)
    found = (
        work.with_row_index("place")
        .join(collectives, on=["rank", "id"])
        .group_by("instance", maintain_order=True)
        .agg("block", "stream", "place", pl.col("transfer_ns").first(), key=(pl.col("end_ns") - clock).min())
    )
    return [
        (key, 2, CollectiveSync(tuple(together), tuple(streams), tuple(places), float(transfer)))
        for _, together, streams, places, transfer, key in found.iter_rows()
    ]
