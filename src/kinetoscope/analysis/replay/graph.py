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
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.delays import delays
from kinetoscope.analysis.replay.dependencies import dependencies
from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.threads import strands
from kinetoscope.analysis.replay.waits import waits
from kinetoscope.trace.model import Trace


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
        work: one row a device event, ordered by ``block``: ``rank``, ``id``, ``block``, ``stretch``,
            ``point_ns``, ``latency_ns``, ``pause_ns``, ``work_ns``, ``duration_ns``, ``lost_ns``.
        stretches: ``rank``, ``strand`` (of the rank), ``start_ns``, ``end_ns``; the row is its number.
        lanes: ``rank``, ``lane``, ``strand``.
        first, last: the first and the last stretch of each strand.
        origin: when each strand's first stretch began, ns after the first of all.
        ranks: whose each clock is, the strands' and then the streams'.
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


class Part(NamedTuple):
    """One rank's share of a graph, and by how much its clock is ahead of the others'."""

    trace: Trace
    spans: Spans
    clock_ns: int = 0


def build(parts: Sequence[Part], meetings: pl.DataFrame | None = None) -> Graph:
    """The graph of ranks that meet in collectives.

    Args:
        meetings: ``meeting``, ``rank``, ``id`` (of the device event) and ``transfer_ns``; None: each rank's
            collectives take as long as they were recorded.
    """
    meetings = None if meetings is None else _complete(meetings, parts)
    tables: list[pl.DataFrame] = []
    stretches: list[pl.DataFrame] = []
    timed: list[tuple[float, int, Instruction]] = []
    first: list[int] = []
    last: list[int] = []
    began: list[int] = []
    strand_ranks: list[int] = []
    stream_ranks: list[int] = []
    lost = streams = blocks = 0
    for part in parts:
        rank = part.trace.rank
        met = None if meetings is None else meetings.filter(pl.col("rank") == rank)["id"]
        stretch, joints, ends = _stretches(part)
        offset = sum(map(len, stretches))
        work = _blocks(part, stretch, met)
        of_row = dict(work.filter(pl.col("row").is_in(_named(part.trace).implode())).select("row", "block").iter_rows())
        sources = _sources(part.trace, of_row)
        for key, joint in joints:
            targets = tuple({of_row[row] + blocks for row in joint.targets if row in of_row})
            placed = joint._replace(
                stretch=joint.stretch + offset, following=joint.following + offset, targets=targets
            )
            timed.append((key - part.clock_ns, 1, placed))
        keys = work.group_by("block", maintain_order=True).agg(
            pl.col("stream").first(), pl.col("stretch").first(), pl.col("key").max()
        )
        for block, stream, at, key in keys.iter_rows():
            before = tuple(source + blocks for source in sources.get(block, ()))
            own = Block(block + blocks, stream + streams, -1 if at is None else at + offset, before)
            timed.append((key - part.clock_ns, 0, own))
        first += [start + offset for start, _ in ends]
        strand_ranks += [rank] * len(ends)
        stream_ranks += [rank] * _distinct(work["stream"])
        began += [part.spans.bounds[0][0] - part.clock_ns] * len(ends)
        last += [end + offset for _, end in ends]
        tables.append(
            work.with_columns(
                pl.col("block") + blocks,
                pl.col("stretch").cast(pl.Int64) + offset,
                pl.col("stream") + streams,
                rank=pl.lit(rank, pl.Int32),
            )
        )
        stretches.append(stretch)
        blocks += len(keys)
        streams += _distinct(work["stream"])
        lost += int(work["lost_ns"].sum())
    work = pl.concat(tables)
    timed += _meetings(work, meetings, {part.trace.rank: part.clock_ns for part in parts})
    timed.sort(key=lambda item: item[:2])
    lanes = [strands(p.trace).with_columns(rank=pl.lit(p.trace.rank, pl.Int32)) for p in parts]
    return Graph(
        work,
        pl.concat(stretches),
        pl.concat(lanes),
        tuple(first),
        tuple(last),
        tuple(float(start - min(began)) for start in began),
        (*strand_ranks, *stream_ranks),
        streams,
        tuple(instruction for _, _, instruction in timed),
        lost,
    )


def _distinct(stream: pl.Series) -> int:
    top = stream.max()
    return int(top) + 1 if isinstance(top, int) else 0


def _stretches(part: Part) -> tuple[pl.DataFrame, list[tuple[float, Joint]], list[tuple[int, int]]]:
    """A rank's stretches of host time, the joints between them with when they were passed, and the first and
    last stretch of each strand."""
    rows: list[tuple[int, int, int, int, int]] = []
    joints: list[tuple[float, Joint]] = []
    ends: list[tuple[int, int]] = []
    rank = part.trace.rank
    table = waits(part.trace)
    calls = table.group_by("strand", "call", maintain_order=True).agg(
        pl.col("start_ns", "end_ns").first(), "row", pl.col("done_ns").max()
    )
    for strand in range(_distinct(strands(part.trace)["strand"])):
        begun = len(rows)
        own = calls.filter(pl.col("strand") == strand).sort("start_ns")
        pending = list(own.select("call", "start_ns", "end_ns", "row", "done_ns").iter_rows())
        place = 0
        for start, end in part.spans.bounds:
            opened = start
            passed = float(start)
            while place < len(pending) and pending[place][1] < start:
                place += 1
            while place < len(pending) and pending[place][1] < end:
                call, begins, returns, targets, done = pending[place]
                place += 1
                if returns > end and part.spans.steps:
                    end = begins  # what crosses the last mark is not the step's
                    break
                tail = max(0, returns - max(begins, done))
                rows.append((rank, strand, opened, begins, round(passed)))
                number = len(rows)
                passed = max(returns, done)
                joints.append((passed, Joint(number - 1, number, (rank, call), tuple(targets), float(tail))))
                opened = returns
            rows.append((rank, strand, opened, max(opened, end), round(passed)))
            joints.append((max(passed, end), Joint(len(rows) - 1, len(rows), None, (), 0.0)))
        # One empty stretch stands for the end: the last joint leads to it.
        rows.append((rank, strand, rows[-1][3], rows[-1][3], rows[-1][3]))
        ends.append((begun, len(rows) - 1))
    schema = {
        "rank": pl.Int32, "strand": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "passed_ns": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row"), joints, ends


def _blocks(part: Part, stretches: pl.DataFrame, met: pl.Series | None) -> pl.DataFrame:
    """A rank's device work inside the spans, with the ``stretch`` that launched it, its ``block`` and when
    that block's place in the program is (``key``)."""
    table = delays(part.trace).drop("name").join(strands(part.trace), on="lane", how="left", maintain_order="left")
    table = _launching(table.filter(_inside(part.spans)), stretches)
    cut_before = pl.col("row").is_in(dependencies(part.trace)["row"].unique().implode())
    cut_after = pl.col("row").is_in(_waited_for(part.trace).implode())
    meets = pl.col("id").is_in([] if met is None else met.implode())
    return (
        table.with_columns(meets.alias("meets"))
        .with_columns(
            (
                (pl.col("stream") != pl.col("stream").shift(1))
                | pl.col("stretch").ne_missing(pl.col("stretch").shift(1))
                | cut_before
                | cut_after.shift(1)
                | pl.col("meets")
                | pl.col("meets").shift(1)
            )
            .fill_null(True)
            .cum_sum()
            .alias("block")
            - 1,
            pl.max_horizontal(
                pl.when("meets").then("start_ns").otherwise("end_ns"),
                stretches["passed_ns"].gather(table["stretch"]),
            ).alias("key"),
        )
        .with_columns(
            pl.col("key").cum_max().over("stream"),
            # What begins a recording has nothing to pause after.
            pl.when(pl.col("before_ns").is_null()).then(0).otherwise("pause_ns").alias("pause_ns"),
        )
    )


def _waited_for(trace: Trace) -> pl.Series:
    """Rows of ``launched`` that the host or other streams waited for."""
    return pl.concat([dependencies(trace)["source"], waits(trace)["row"]]).unique()


def _named(trace: Trace) -> pl.Series:
    return pl.concat([_waited_for(trace), dependencies(trace)["row"]]).unique()


def _inside(spans: Spans) -> pl.Expr:
    """Whether work was launched inside the spans; what lost its launch, whether it began there. What its
    stream still had to do when the recording began is the work of steps before."""
    if not spans.steps:
        return pl.lit(True)
    at = pl.coalesce("point_ns", "start_ns")
    known = pl.col("point_ns").is_not_null()
    left_over = ~known.cum_max().over("stream") & known.any()
    return pl.any_horizontal(at.is_between(start, end, "left") for start, end in spans.bounds) & ~left_over


def _launching(table: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Adds ``stretch``. A launch inside a call that waited came when the call returned."""
    begun = stretches.with_row_index("stretch").select(
        "stretch", "strand", opened="start_ns", closed="end_ns"
    )
    # Of stretches that open at one instant, the last has length.
    begun = begun.unique(["strand", "opened"], keep="first", maintain_order=True)
    found = (
        table.with_row_index("order")
        .sort("point_ns")
        .join_asof(
            begun.sort("opened"), left_on="point_ns", right_on="opened", by="strand", check_sortedness=False
        )
        .sort("order")
    )
    within = (pl.col("point_ns") > pl.col("closed")) & (pl.col("stretch") + 1 < len(stretches))
    found = found.with_columns(pl.when(within).then(pl.col("stretch") + 1).otherwise("stretch").alias("stretch"))
    opens = stretches["start_ns"].gather(found["stretch"])
    later = pl.max_horizontal("point_ns", opens) - pl.col("point_ns")
    return found.with_columns(
        (pl.col("latency_ns") - later).clip(lower_bound=0).alias("latency_ns"),
        (pl.col("point_ns") + later).alias("point_ns"),
        # Without a launch it goes with the work before it, or with what comes first.
        pl.col("stretch").forward_fill().over("stream").alias("stretch"),
    ).drop("order", "closed", "opened")


def _sources(trace: Trace, of_row: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for row, source in dependencies(trace).iter_rows():
        if row in of_row and source in of_row:
            found[of_row[row]] = (*found.get(of_row[row], ()), of_row[source])
    return found


def _complete(meetings: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """Those that every rank took part in inside its spans."""
    inside = [
        delays(part.trace).filter(_inside(part.spans)).select("id", rank=pl.lit(part.trace.rank, pl.Int32))
        for part in parts
    ]
    found = meetings.join(pl.concat(inside), on=["rank", "id"], how="semi")
    return found.filter(pl.len().over("meeting") == len(parts))


def _meetings(
    work: pl.DataFrame, meetings: pl.DataFrame | None, clocks: Mapping[int, int]
) -> list[tuple[float, int, Instruction]]:
    if meetings is None:
        return []
    clock = pl.col("rank").replace_strict(clocks, return_dtype=pl.Int64)
    found = (
        work.with_row_index("place")
        .join(meetings, on=["rank", "id"])
        .group_by("meeting", maintain_order=True)
        .agg("block", "stream", "place", pl.col("transfer_ns").first(), key=(pl.col("end_ns") - clock).min())
    )
    return [
        (key, 2, Meeting(tuple(blocks), tuple(streams), tuple(places), float(transfer)))
        for _, blocks, streams, places, transfer, key in found.iter_rows()
    ]
