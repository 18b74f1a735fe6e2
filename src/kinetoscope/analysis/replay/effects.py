"""What changes do to the rows of a graph; of a change that joins two, found from what each of them does."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import polars as pl

from kinetoscope.analysis.replay.change import Change
from kinetoscope.analysis.replay.graph import Graph
from kinetoscope.analysis.time import intervals


def shares(host: pl.DataFrame) -> pl.DataFrame:
    """How much host time goes away: a share of it, which changes at some instants.

    Args:
        host: intervals (``start_ns``, ``end_ns``, ``share``); where several overlap, the largest counts.

    Returns:
        ``at_ns`` (sorted) and the ``share`` from there on; of several at one instant the last counts, and
        before the first nothing goes away.
    """
    found = [pl.DataFrame(schema={"at_ns": pl.Int64, "change": pl.Float64})]
    smaller = 0.0
    # Each share adds what it is above the next smaller one, wherever a segment has it or more.
    for share in host["share"].unique().sort():
        covered = intervals.union(host.filter(pl.col("share") >= share))
        step = pl.lit(share - smaller)
        found += [covered.select(at_ns="start_ns", change=step), covered.select(at_ns="end_ns", change=-step)]
        smaller = share
    return pl.concat(found).sort("at_ns").select("at_ns", share=pl.col("change").cum_sum())


def larger(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """The steps of what is the larger share of two at each instant."""
    none = pl.lit(None, pl.Float64)
    both = one.select("at_ns", one="share", other=none).merge_sorted(
        other.select("at_ns", one=none, other="share"), key="at_ns"
    )
    known = (pl.col(side).forward_fill().fill_null(0) for side in ("one", "other"))
    return both.select("at_ns", share=pl.max_horizontal(known))


def gone_until(steps: pl.DataFrame, instants: pl.Series) -> pl.Series:
    """How many ns of a thread have gone away before each instant (ns, sorted)."""
    if steps.is_empty():
        return pl.zeros(len(instants), pl.Float64, eager=True)
    at, slope = steps["at_ns"], steps["share"]
    since = (at - at[0]).cast(pl.Float64)  # exact: of a recording, not of an age
    # Between two steps what is gone is a line: by its slope, and where it meets the first step.
    height = (slope.shift(1, fill_value=0.0) * since.diff().fill_null(0)).cum_sum() - slope * since
    lines = pl.DataFrame({"at": at, "slope": slope, "height": height})
    found = pl.DataFrame({"at": instants}).join_asof(lines, on="at", check_sortedness=False)
    gone = found["height"] + found["slope"] * (found["at"] - at[0])
    return gone.fill_null(0)


@dataclass(frozen=True, eq=False)
class Effect:
    """Of one rank's change. None where it changes nothing of the sort.

    Args:
        left: by row of ``work``, what share of the device event is left.
        host: what goes away of host time.
    """

    left: pl.Series | None = None
    host: Host | None = None


@dataclass(frozen=True, eq=False)
class Host:
    """Host time that goes away.

    Args:
        steps: by thread, what share of it (see ``spared``).
        sooner: by row of ``work``, by how much its launch comes sooner after the start of its segment, ns.
        shorter: by segment, by how much, ns.
    """

    steps: dict[int, pl.DataFrame]
    sooner: pl.Series
    shorter: pl.Series


@dataclass(frozen=True, eq=False)
class Effects:
    """Those on one graph, each found once for as long as its change lives."""

    graph: Graph
    _known: dict[int, WeakKeyDictionary[Change, Effect]] = field(default_factory=dict)

    def of(self, rank: int, change: Change) -> Effect:
        """Of a change of this rank."""
        known = self._known.setdefault(rank, WeakKeyDictionary())
        found = known.get(change)
        if found is None:
            found = self._of_both(rank, *change.both) if change.both else self._of_one(rank, change)
            known[change] = found
        return found

    def _of_one(self, rank: int, change: Change) -> Effect:
        left = _left(self.graph, rank, change.device) if len(change.device) else None
        if change.host.is_empty():
            return Effect(left)
        steps = {
            thread: shares(change.host.filter(pl.col("lane").is_in(self.graph.lanes_of(rank, thread))))
            for owner, thread in self.graph.instants
            if owner == rank
        }
        return Effect(left, _host(self.graph, rank, steps))

    def _of_both(self, rank: int, one: Change, other: Change) -> Effect:
        first, second = self.of(rank, one), self.of(rank, other)
        left = shortest(first.left, second.left)
        if first.host is None or second.host is None or first.host is second.host:
            return Effect(left, first.host or second.host)
        more = second.host.steps
        steps = {thread: larger(own, more[thread]) for thread, own in first.host.steps.items()}
        return Effect(left, _host(self.graph, rank, steps))


def shortest(one: pl.Series | None, other: pl.Series | None) -> pl.Series | None:
    """What two leave of device events: of each the smaller share."""
    if one is None or other is None or one is other:
        return other if one is None else one
    return one.zip_with(one < other, other)


def _left(graph: Graph, rank: int, device: pl.DataFrame) -> pl.Series:
    """What is left of events (``id``) that are ``saved_ns`` shorter."""
    left = pl.repeat(1.0, len(graph.work), eager=True)
    if (places := graph.places.get(rank)) is None:  # none of its work is replayed
        return left
    known = device.filter(device["id"] < len(places))
    rows, saved = places.gather(known["id"]), known["saved_ns"]
    rows, saved = rows.filter(rows.is_not_null()), saved.filter(rows.is_not_null())
    to = (1 - saved / graph.work["duration_ns"].gather(rows)).clip(0, 1)
    # An event is named once, seldom twice; then the smallest share counts.
    while len(rows):
        left = left.scatter(rows, to)
        more = left.gather(rows) > to
        rows, to = rows.filter(more), to.filter(more)
    return left


def _host(graph: Graph, rank: int, steps: dict[int, pl.DataFrame]) -> Host:
    launches, segments = len(graph.work), len(graph.segments)
    each = [
        gone_until(steps[thread], instants["at"])
        if owner == rank
        else pl.zeros(len(instants), pl.Float64, eager=True)
        for (owner, thread), instants in graph.instants.items()
    ]
    gone = pl.concat([pl.Series([], dtype=pl.Float64), *each], rechunk=True).gather(graph.order)
    at_launch, at_start, at_end = (
        gone.slice(first, length)
        for first, length in ((0, launches), (launches, segments), (launches + segments, segments))
    )
    return Host(steps, at_launch - at_start.gather(graph.work["segment"]), at_end - at_start)
