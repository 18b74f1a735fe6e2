"""The stages of a pipeline: who sends to whom, and which pass each transfer is of.

A pass is one microbatch's, forward or backward, on one rank. The nth forward pass of a step begins when the
nth transfer from the stage before is there, and sends the nth to the stage after; backward likewise, the
other way round. So it is in every schedule whose stages make a chain, whatever was launched early; where the
numbers do not agree with that semantics, nothing is said of passes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, ways
from kinetoscope.analysis.ranks.computed import BACKWARD, FORWARD, UPDATE

TINY = 0.05  # of the median pass: what is shorter is no pass, but belongs to a neighbour


class CannotTell(Exception):
    """Why a pipeline's passes are not known."""


class Transfer(NamedTuple):
    """An end of a send and its receive, on its rank."""

    row: int
    launched_ns: int
    source: int
    target: int


class ComputeSegment(NamedTuple):
    """Of a rank's computing: see ``segments``."""

    row: int
    launched_ns: int
    what: str
    took_ns: int


@dataclass
class Pass:
    """Segments of one microbatch, or of a step's optimizer, and the transfers that it needs."""

    what: str
    rows: list[int]
    took_ns: int = 0
    is_cut: bool = False  # something was sent or received since the one before
    needs: list[int] = field(default_factory=list[int])

    def add(self, other: Pass) -> None:
        self.rows += other.rows
        self.took_ns += other.took_ns


@dataclass(frozen=True)
class Chain:
    """Who follows whom: by rank the stage after and before, and which stage it is."""

    after: Mapping[int, int]
    before: Mapping[int, int]
    stage: Mapping[int, int]

    def workers(self) -> list[tuple[int, ...]]:
        """The data-parallel workers: of each all its stages' ranks."""
        found = [[rank] for rank in sorted(self.stage) if rank not in self.before]
        for ranks in found:
            while (following := self.after.get(ranks[-1])) is not None:
                ranks.append(following)
        return [tuple(ranks) for ranks in found]


def ends(table: pl.DataFrame) -> pl.DataFrame:
    """Adds to collectives ``ways``: of sends and receives, from which rank to which (see ``collectives``); of
    a batch both ways, of unknown ends none."""
    likes = table.filter(pl.col("semantics") == PAIR).select(pl.col("signature").unique())
    known = pl.Series("ways", [ways(like) for like in likes["signature"]], pl.List(pl.Array(pl.Int32, 2)))
    return table.join(likes.with_columns(known), on="signature", how="left", maintain_order="left")


def chain(table: pl.DataFrame) -> Chain:
    """The stages, from a table with ``ends``. What two send each other first in a step goes forward.

    Raises:
        CannotTell: they are no chain.
    """
    sent = table.filter(pl.col("instance").is_not_null() & (pl.col("ways").list.len() == 1)).with_columns(
        pl.col("ways").list.first().arr.get(place).alias(name)
        for place, name in enumerate(("source", "target"))
    )
    if sent.is_empty():
        raise CannotTell("no send names its two ends")
    first = (
        sent.sort(pl.col("end_ns") - pl.col("clock_ns"))
        .group_by(
            "step", low=pl.min_horizontal("source", "target"), high=pl.max_horizontal("source", "target")
        )
        .agg(pl.col("source").first())
    )
    ways = first.group_by("low", "high").agg(pl.col("source").mode().min()).sort("low", "high")
    after, before = dict[int, int](), dict[int, int]()
    for low, high, source in ways.iter_rows():
        target = high if source == low else low
        if after.setdefault(source, target) != target or before.setdefault(target, source) != source:
            raise CannotTell("a stage sends forward to more than one, or more than one to it")
    stage = dict[int, int]()
    for rank in sorted({*after, *before} - set(before)):
        place: int | None = rank
        while place is not None:
            stage[place] = len(stage) if place == rank else stage[before[place]] + 1
            stage[rank] = 0
            place = after.get(place)
    if len(stage) < len({*after, *before}):
        raise CannotTell("the last stage sends to the first, as where each holds several parts of the model")
    return Chain(after, before, stage)


def passes(
    rank: int, found: Chain, segments: Sequence[ComputeSegment], transfers: Sequence[Transfer]
) -> list[Pass]:
    """The passes of a rank in one step, in order.

    Raises:
        CannotTell: they do not fit what was sent and received.
    """
    made = _passes(segments, transfers)
    ways = (
        (FORWARD, found.before.get(rank), found.after.get(rank)),
        (BACKWARD, found.after.get(rank), found.before.get(rank)),
    )
    for what, origin, goal in ways:
        own = [one for one in made if one.what == what]
        come = [one.row for one in transfers if (one.source, one.target) == (origin, rank)]
        gone = [one.row for one in transfers if (one.source, one.target) == (rank, goal)]
        if not own:
            raise CannotTell(
                f"no {what} pass of rank {rank} was recorded in a step, as where autograd was not"
            )
        for rows, other in ((come, origin), (gone, goal)):
            if other is not None and (not rows or len(rows) % len(own)):
                raise CannotTell(
                    f"rank {rank} runs {len(own)} {what} passes in a step, for which it meets rank {other} "
                    f"{len(rows)} times"
                )
        each = len(come) // len(own)
        for place, one in enumerate(own):
            one.needs = come[place * each : (place + 1) * each]
    return made


def _passes(segments: Sequence[ComputeSegment], transfers: Sequence[Transfer]) -> list[Pass]:
    """Segments of one sort, until something was sent or received; what is tiny joins a neighbour."""
    whole = list(_joined(segments, sorted(one.launched_ns for one in transfers)))
    sorts = {one.what for one in whole}
    usual = max((median(one.took_ns for one in whole if one.what == what) for what in sorts), default=0)
    made: list[Pass] = []
    early: list[Pass] = []
    for one in whole:
        is_tiny = one.what != UPDATE and one.took_ns < TINY * usual
        if is_tiny and not (made and not one.is_cut):
            early.append(one)
            continue
        is_same = bool(made) and (is_tiny or made[-1].what == one.what)
        if is_same and not one.is_cut and not early:
            made[-1].add(one)
        else:
            made.append(Pass(one.what, []))
            for part in (*early, one):
                made[-1].add(part)
            early = []
    last = max((place for place, one in enumerate(made) if one.what == BACKWARD), default=len(made))
    made += early
    for one in made[last + 1 :]:  # after a step's last backward pass no forward one follows
        one.what = UPDATE
    return made


def _joined(segments: Sequence[ComputeSegment], cuts: Sequence[int]) -> Iterator[Pass]:
    """Neighbours of one sort between which nothing was sent or received."""
    made: Pass | None = None
    sent = 0
    for one in sorted(segments, key=lambda one: one.launched_ns):
        before, sent = sent, bisect_left(cuts, one.launched_ns)
        part = Pass(one.what, [one.row], one.took_ns, is_cut=sent > before)
        if made is not None and made.what == one.what and not part.is_cut:
            made.add(part)
            continue
        if made is not None:
            yield made
        made = part
    if made is not None:
        yield made
