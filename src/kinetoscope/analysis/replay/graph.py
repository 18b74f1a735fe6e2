"""The replayed work of one or several ranks as a program: blocks of device work and the joints between them.

The clocks that a program moves are those of *strands* (host threads) and *streams*. Between two joints a
strand's clock only runs on, and a stream's does one block after another: for the clocks ``h`` of the strand
and ``s`` of the stream a block gives

    s = max(s + D, h + M),

D the block's work with its pauses, M the latest that any of its launches would have it end. Both are sums and
maxima over its rows, found for all blocks at once; only joints are gone through one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.device_work import delays
from kinetoscope.analysis.replay.share import blocks, ends_with, inside, sources
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.stretches import Passed, Stretches, stretches
from kinetoscope.analysis.replay.threads import strands
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole


class Block(NamedTuple):
    """Work of one stream, launched from one stretch of a strand."""

    block: int
    stream: int
    stretch: int
    sources: tuple[int, ...]  # blocks of other streams that end before it begins


class Joint(NamedTuple):
    """Where one stretch of a strand ends and the next begins, once blocks have ended."""

    stretch: int
    following: int
    call: tuple[int, int] | None  # rank and row of the call that waits
    targets: tuple[int, ...]
    tail_ns: float  # what the call takes once they have


class Meeting(NamedTuple):
    """A collective: all ranks' blocks begin when the last may, and take as long as the data to move."""

    blocks: tuple[int, ...]
    streams: tuple[int, ...]
    rows: tuple[int, ...]
    transfer_ns: float


Instruction = Block | Joint | Meeting


@dataclass(frozen=True)
class Graph:
    """A program with the tables that its numbers come from.

    Args:
        work: one row a device event, ordered by block (see ``share.blocks``), with ``rank``.
        stretches: of host time, numbered by row (see ``stretches``).
        lanes: ``rank``, ``lane``, ``strand``.
        first, last: the first and the last stretch of each strand.
        origin: by clock (strands', then streams'), when what is replayed of its rank began, ns after the
            first of all.
        ranks: by clock, whose it is.
        streams: how many streams there are.
        program: in an order that follows all edges.
    """

    work: pl.DataFrame
    stretches: pl.DataFrame
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

    def lanes_of(self, rank: int, strand: int) -> list[int]:
        """The lanes of a strand."""
        return self.lanes.filter(pl.col("rank") == rank, pl.col("strand") == strand)["lane"].to_list()

    @cached_property
    def instants(self) -> dict[tuple[int, int], pl.DataFrame]:
        """By rank and strand the instants that matter, in order: ``at`` (ns) and ``slot``, counted over first
        all launches (rows of ``work``), then all stretches' starts, then their ends."""
        launches = self.work.select(
            "rank", strand=self.stretches["strand"].gather(self.work["stretch"]), at="point_ns"
        )
        bounds = [self.stretches.select("rank", "strand", at=bound) for bound in ("start_ns", "end_ns")]
        every = pl.concat([launches, *bounds]).with_row_index("slot").drop_nulls().sort("at")
        return {
            (whole(rank), whole(strand)): own.select("at", "slot")
            for (rank, strand), own in every.group_by("rank", "strand", maintain_order=True)
        }

    @cached_property
    def order(self) -> pl.Series:
        """By slot its row among the ``instants`` of all strands, one below the other; null: in none."""
        slots = pl.concat(
            [pl.Series("slot", [], pl.UInt32), *(own["slot"] for own in self.instants.values())]
        )
        none = pl.repeat(None, len(self.work) + 2 * len(self.stretches), dtype=pl.UInt32, eager=True)
        return none.scatter(slots, pl.int_range(len(slots), dtype=pl.UInt32, eager=True))


class Part(NamedTuple):
    """One rank's share of a graph, and by how much its clock is ahead of the others'."""

    trace: Trace
    spans: Spans
    clock_ns: int = 0


class _Share(NamedTuple):
    """A part with its numbers counted on from those of the parts before it."""

    part: Part
    work: pl.DataFrame
    stretches: Stretches
    program: list[Timed]
    stretch: int
    streams: int


# An instruction's place in the program: when it happened, and of what happened together the order.
Timed = tuple[int, int, Instruction]


def build(parts: Sequence[Part], meetings: pl.DataFrame | None = None) -> Graph:
    """The graph of ranks that meet in collectives.

    Args:
        meetings: ``meeting``, ``rank``, ``id`` (of the device event) and ``transfer_ns``; None: each rank's
            collectives take as long as they were recorded.
    """
    meetings = _complete(NO_MEETINGS.clear() if meetings is None else meetings, parts)
    shares: list[_Share] = []
    stretch = stream = block = 0
    for part in parts:
        own = _share(part, meetings, stretch, stream, block)
        shares.append(own)
        stretch += len(own.stretches.table)
        stream += own.streams
        block += own.work["block"].n_unique()
    work = pl.concat([share.work for share in shares])
    program = [instruction for share in shares for instruction in share.program]
    program += _meetings(work, meetings, {part.trace.rank: part.clock_ns for part in parts})
    owners = [share for share in shares for _ in share.stretches.ends]
    owners += [share for share in shares for _ in range(share.streams)]
    began = [share.part.spans.bounds[0][0] - share.part.clock_ns for share in owners]
    lanes = [strands(p.trace).with_columns(rank=pl.lit(p.trace.rank, pl.Int32)) for p in parts]
    return Graph(
        work,
        pl.concat([share.stretches.table for share in shares]),
        pl.concat(lanes),
        tuple(start + share.stretch for share in shares for start, _ in share.stretches.ends),
        tuple(end + share.stretch for share in shares for _, end in share.stretches.ends),
        tuple(float(start - min(began)) for start in began),
        tuple(share.part.trace.rank for share in owners),
        stream,
        tuple(instruction for *_, instruction in sorted(program, key=lambda timed: timed[:2])),
        int(work["lost_ns"].sum()),
    )


NO_MEETINGS = pl.DataFrame(
    schema={"meeting": pl.UInt32, "rank": pl.Int32, "id": pl.UInt32, "transfer_ns": pl.Int64}
)


def _share(part: Part, meetings: pl.DataFrame, stretch: int, stream: int, block: int) -> _Share:
    trace, clock = part.trace, part.clock_ns
    own = stretches(trace, part.spans)
    met = meetings["id"].filter(meetings["rank"] == trace.rank)
    work = blocks(trace, part.spans, own.table, met)
    targets = [(joint.stretch, *target) for joint in own.joints for target in joint.targets]
    wanted = pl.DataFrame(targets, schema=["stretch", "stream", "row"], orient="row")
    ends: dict[int, list[int]] = {}
    for after, end in zip(wanted["stretch"], ends_with(work, wanted), strict=True):
        ends.setdefault(after, []).append(end + block)
    program: list[Timed] = [
        (joint.at_ns - clock, 1, _joint(trace.rank, joint, stretch, tuple(ends.get(joint.stretch, ()))))
        for joint in own.joints
    ]
    before = sources(trace, work)
    each = work.group_by("block", maintain_order=True).agg(
        pl.col("stream").first(), pl.col("stretch").first(), pl.col("key").max()
    )
    for number, of, at, key in each.iter_rows():
        linked = tuple(source + block for source in before.get(number, ()))
        placed = Block(number + block, of + stream, -1 if at is None else at + stretch, linked)
        program.append((key - clock, 0, placed))
    work = work.with_columns(
        pl.col("block") + block,
        pl.col("stretch") + stretch,
        pl.col("stream") + stream,
        rank=pl.lit(trace.rank, pl.Int32),
    )
    return _Share(part, work, own, program, stretch, each["stream"].n_unique())


def _joint(rank: int, joint: Passed, offset: int, targets: tuple[int, ...]) -> Joint:
    call = None if joint.call is None else (rank, joint.call)
    return Joint(joint.stretch + offset, joint.stretch + offset + 1, call, targets, float(joint.tail_ns))


def _complete(meetings: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """Those that every rank of them took part in inside its spans."""
    if meetings.is_empty():
        return meetings
    ids = [
        delays(part.trace).filter(inside(part.spans)).select("id", rank=pl.lit(part.trace.rank, pl.Int32))
        for part in parts
    ]
    ranks = meetings.with_columns(pl.len().over("meeting").alias("ranks"))
    found = ranks.join(pl.concat(ids), on=["rank", "id"], how="semi")
    return found.filter(pl.len().over("meeting") == pl.col("ranks")).drop("ranks")


def _meetings(work: pl.DataFrame, meetings: pl.DataFrame, clocks: Mapping[int, int]) -> list[Timed]:
    clock = pl.col("rank").replace_strict(clocks, return_dtype=pl.Int64)
    found = (
        work.with_row_index("place")
        .join(meetings, on=["rank", "id"])
        .group_by("meeting", maintain_order=True)
        .agg("block", "stream", "place", pl.col("transfer_ns").first(), key=(pl.col("end_ns") - clock).min())
    )
    return [
        (key, 2, Meeting(tuple(together), tuple(streams), tuple(places), float(transfer)))
        for _, together, streams, places, transfer, key in found.iter_rows()
    ]
