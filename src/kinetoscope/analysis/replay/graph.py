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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.device_work import delays
from kinetoscope.analysis.replay.segments import HostSegments, Passed, segments
from kinetoscope.analysis.replay.share import blocks, ends_with, inside, sources
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.threads import logical_threads
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole


class Block(NamedTuple):
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


class CollectiveSync(NamedTuple):
    """A collective: all ranks' blocks begin when the last may, and take as long as the data to move."""

    blocks: tuple[int, ...]
    streams: tuple[int, ...]
    rows: tuple[int, ...]
    transfer_ns: float


Instruction = Block | SyncPoint | CollectiveSync


@dataclass(frozen=True)
class Graph:
    """A program with the tables that its numbers come from.

    Args:
        work: one row a device event, ordered by block (see ``share.blocks``), with ``rank``.
        segments: of host time, numbered by row (see ``segments``).
        lanes: ``rank``, ``lane``, ``thread``.
        first, last: the first and the last segment of each thread.
        origin: by clock (threads', then streams'), when what is replayed of its rank began, ns after the
            first of all.
        ranks: by clock, whose it is.
        streams: how many streams there are.
        program: in an order that follows all edges.
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

    @cached_property
    def places(self) -> dict[int, pl.Series]:
        """By rank: for each of its ``device_events`` the row in ``work``; null where it is not replayed."""
        rows = self.work.select("rank", "id", pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
        found: dict[int, pl.Series] = {}
        for (rank,), own in rows.drop_nulls("id").group_by("rank"):
            none = pl.repeat(None, whole(own["id"].max()) + 1, dtype=pl.UInt32, eager=True)
            found[whole(rank)] = none.scatter(own["id"], own["row"])
        return found

    def lanes_of(self, rank: int, thread: int) -> list[int]:
        """The lanes of a thread."""
        return self.lanes.filter(pl.col("rank") == rank, pl.col("thread") == thread)["lane"].to_list()

    @cached_property
    def instants(self) -> dict[tuple[int, int], pl.DataFrame]:
        """By rank and thread the instants that matter, in order: ``at`` (ns) and ``slot``, counted over first
        all launches (rows of ``work``), then all segments' starts, then their ends."""
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
        """By slot its row among the ``instants`` of all threads, one below the other; null: in none."""
        slots = pl.concat(
            [pl.Series("slot", [], pl.UInt32), *(own["slot"] for own in self.instants.values())]
        )
        none = pl.repeat(None, len(self.work) + 2 * len(self.segments), dtype=pl.UInt32, eager=True)
        return none.scatter(slots, pl.int_range(len(slots), dtype=pl.UInt32, eager=True))


class RankSpans(NamedTuple):
    """One rank's share of a graph, and by how much its clock is ahead of the others'."""

    trace: Trace
    spans: Spans
    clock_ns: int = 0


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


def build(parts: Sequence[RankSpans], collectives: pl.DataFrame | None = None) -> Graph:
    """The graph of ranks that meet in collectives.

    Args:
        collectives: ``instance``, ``rank``, ``id`` (of the device event), ``transfer_ns``; None: each rank's
            collectives take as long as they were recorded.
    """
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
    return Graph(
        work,
        pl.concat([share.segments.table for share in shares]),
        pl.concat(lanes),
        tuple(start + share.segment for share in shares for start, _ in share.segments.ends),
        tuple(end + share.segment for share in shares for _, end in share.segments.ends),
        tuple(float(start - min(began)) for start in began),
        tuple(share.part.trace.rank for share in owners),
        stream,
        tuple(instruction for *_, instruction in sorted(program, key=lambda timed: timed[:2])),
        int(work["lost_ns"].sum()),
    )


NO_COLLECTIVES = pl.DataFrame(
    schema={"instance": pl.UInt32, "rank": pl.Int32, "id": pl.UInt32, "transfer_ns": pl.Int64}
)


def _share(part: RankSpans, collectives: pl.DataFrame, segment: int, stream: int, block: int) -> _Share:
    trace, clock = part.trace, part.clock_ns
    own = segments(trace, part.spans)
    met = collectives["id"].filter(collectives["rank"] == trace.rank)
    work = blocks(trace, part.spans, own.table, met)
    targets = [(sync.segment, *target) for sync in own.syncs for target in sync.targets]
    wanted = pl.DataFrame(targets, schema=["segment", "stream", "row"], orient="row")
    ends: dict[int, list[int]] = {}
    for after, end in zip(wanted["segment"], ends_with(work, wanted), strict=True):
        ends.setdefault(after, []).append(end + block)
    program: list[Timed] = [
        (sync.at_ns - clock, 1, _sync(trace.rank, sync, segment, tuple(ends.get(sync.segment, ()))))
        for sync in own.syncs
    ]
    before = sources(trace, work)
    each = work.group_by("block", maintain_order=True).agg(
        pl.col("stream").first(), pl.col("segment").first(), pl.col("key").max()
    )
    for number, of, at, key in each.iter_rows():
        linked = tuple(source + block for source in before.get(number, ()))
        placed = Block(number + block, of + stream, -1 if at is None else at + segment, linked)
        program.append((key - clock, 0, placed))
    work = work.with_columns(
        pl.col("block") + block,
        pl.col("segment") + segment,
        pl.col("stream") + stream,
        rank=pl.lit(trace.rank, pl.Int32),
    )
    return _Share(part, work, own, program, segment, each["stream"].n_unique())


def _sync(rank: int, sync: Passed, offset: int, targets: tuple[int, ...]) -> SyncPoint:
    call = None if sync.call is None else (rank, sync.call)
    return SyncPoint(sync.segment + offset, sync.segment + offset + 1, call, targets, float(sync.tail_ns))


def _complete(collectives: pl.DataFrame, parts: Sequence[RankSpans]) -> pl.DataFrame:
    """Those that every rank of them took part in inside its spans."""
    if collectives.is_empty():
        return collectives
    ids = [
        delays(part.trace).filter(inside(part.spans)).select("id", rank=pl.lit(part.trace.rank, pl.Int32))
        for part in parts
    ]
    ranks = collectives.with_columns(pl.len().over("instance").alias("ranks"))
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
