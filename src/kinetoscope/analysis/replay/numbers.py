"""A graph's numbers once a change is made: all blocks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, reduce
from math import inf
from weakref import WeakKeyDictionary

import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from kinetoscope.analysis.events.rows import constant
from kinetoscope.analysis.replay.change import ReplayChange
from kinetoscope.analysis.replay.engine import NEVER, Numbers
from kinetoscope.analysis.replay.graph import CollectiveSync, ReplayGraph
from kinetoscope.analysis.time import intervals

# A profiler slows hosts 1.4 to 2.8 times (docs/evidence/everyday.md), by what it does at each event.
SLOWS = 2.8


def shares(host: pl.DataFrame) -> pl.DataFrame:
    """How much host time goes away, at which instants: ``at_ns`` (sorted) and the ``share`` from there on; of
    several at one instant the last counts, before the first nothing goes. ``host``: intervals (``start_ns``,
    ``end_ns``, ``share``); where several overlap, the largest counts."""
    if host.is_empty():
        return pl.DataFrame(schema={"at_ns": pl.Int64, "share": pl.Float64})
    if host["share"].min() == host["share"].max():
        covered = intervals.union(host)
        at = pl.concat([covered["start_ns"], covered["end_ns"]]).sort()
        return pl.DataFrame(
            {"at_ns": at, "share": pl.Series([host["share"][0], 0.0] * len(covered), dtype=pl.Float64)}
        )
    found = list[pl.DataFrame]()
    smaller = 0.0
    # Each share adds what it is above the next smaller one, wherever a segment has it or more.
    for share in host["share"].unique().sort():
        covered = intervals.union(host.filter(host["share"] >= share))
        step = constant(share - smaller, len(covered), pl.Float64)
        found += [pl.DataFrame({"at_ns": covered["start_ns"], "change": step})]
        found += [pl.DataFrame({"at_ns": covered["end_ns"], "change": -step})]
        smaller = share
    return pl.concat(found).sort("at_ns").select("at_ns", share=pl.col("change").cum_sum())


def larger(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """The steps of what is the larger share of two at each instant."""
    if one.is_empty() or other.is_empty():
        return other if one.is_empty() else one
    return _joined(one, other).select("at_ns", share=pl.max_horizontal("one", "other"))


def quiet_pace(pace: float) -> float:
    """The factor of quiet time at a ``pace``: 1, unless a profiler slowed the host more than usual."""
    return min(1.0, SLOWS * pace)


def at_pace(steps: pl.DataFrame, quiet: pl.DataFrame, pace: float) -> pl.DataFrame:
    """The steps of shares of host time as long as it is at a pace, ``quiet`` or not."""
    more = (quiet_pace(pace) - pace) * pl.col("other")
    return _joined(steps, quiet).select("at_ns", share=pl.col("one") * (pace + more))


def _joined(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    none = pl.lit(None, pl.Float64)
    both = one.select("at_ns", one="share", other=none).merge_sorted(
        other.select("at_ns", one=none, other="share"), key="at_ns"
    )
    return both.select("at_ns", pl.col("one", "other").forward_fill().fill_null(0))


class Effect(Struct, frozen=True, eq=False):
    """The effect of one rank's change: of the device events that get shorter the ``row`` of ``work`` and what
    share is ``left``; by thread, what share of its time goes away (``host``, see ``shares``). None where it
    changes nothing of the sort."""

    left: pl.DataFrame | None = None
    host: dict[int, pl.DataFrame] | None = None


class Effects(Struct, frozen=True, eq=False):
    """Effects of changes on one graph, each found once for as long as its change lives; and the host time
    that the last of them took away, since most changes that are asked for next differ on the device alone."""

    graph: ReplayGraph
    _known: dict[int, WeakKeyDictionary[ReplayChange, Effect]] = field(default_factory=dict)
    last: list[tuple[dict[int, pl.DataFrame], tuple[pl.Series, pl.Series]]] = field(default_factory=list)

    def of(self, rank: int, change: ReplayChange) -> Effect:
        known = self._known.setdefault(rank, WeakKeyDictionary())
        found = known.get(change)
        if found is None:
            found = self._of_both(rank, *change.both) if change.both else self._of_one(rank, change)
            known[change] = found
        return found

    def _of_one(self, rank: int, change: ReplayChange) -> Effect:
        left = _left(self.graph, rank, change.device) if len(change.device) else None
        if change.host.is_empty():
            return Effect(left)
        lanes = self.graph.lanes_of
        threads = [thread for owner, thread in self.graph.instants if owner == rank]
        own = (change.host["lane"].is_in(lanes.get((rank, thread), [])) for thread in threads)
        steps = (shares(change.host if of.all() else change.host.filter(of)) for of in own)
        return Effect(left, dict(zip(threads, steps, strict=True)))

    def _of_both(self, rank: int, one: ReplayChange, other: ReplayChange) -> Effect:
        first, second = self.of(rank, one), self.of(rank, other)
        left = shortest(first.left, second.left)
        if first.host is None or second.host is None or first.host is second.host:
            return Effect(left, first.host or second.host)
        more = second.host
        return Effect(left, {thread: larger(own, more[thread]) for thread, own in first.host.items()})


def shortest(one: pl.DataFrame | None, other: pl.DataFrame | None) -> pl.DataFrame | None:
    """The smaller share that two changes leave of each device event."""
    if one is None or other is None or one is other:
        return other if one is None else one
    return _smallest(pl.concat([one, other]))


def _smallest(shares: pl.DataFrame) -> pl.DataFrame:
    shares = shares.sort("row")
    if shares["row"].n_unique() == len(shares):
        return shares
    return shares.group_by("row", maintain_order=True).agg(pl.col("left").min())


def _left(graph: ReplayGraph, rank: int, device: pl.DataFrame) -> pl.DataFrame:
    """The share that is left of events (``id``) which are ``saved_ns`` shorter."""
    places = graph.places.get(rank, constant(None, 0, pl.UInt32))  # empty: none of its work is replayed
    known = device.filter(device["id"] < len(places))
    rows = places[known["id"]]
    left = (1 - known["saved_ns"] / graph.work["duration_ns"][rows]).clip(0, 1)
    return _smallest(pl.DataFrame({"row": rows, "left": left.cast(pl.Float64)}).drop_nulls("row"))


def _gone(base: State, rank: int, steps: dict[int, pl.DataFrame]) -> tuple[pl.Series, pl.Series]:
    """How much sooner work is launched, counted from the start of its segment, and how much shorter segments
    are, where host time of a rank's threads goes away."""
    for known, found in base.effects.last:
        if known is steps:
            return found
    graph, own = base.graph, {(rank, thread): each for thread, each in steps.items()}
    if base.pace != 1:
        own = {key: at_pace(each, graph.quiet[key], base.pace) for key, each in own.items()}
    before, at_start, at_end = graph.until(own)
    launched = before[graph.order.head(len(graph.work))]
    found = launched - at_start.gather(graph.work["segment"]), at_end - at_start
    base.effects.last[:] = [(steps, found)]
    return found


class State(Struct, frozen=True, eq=False, dict=True):
    """A graph with host time scaled by ``pace``, but for ``quiet`` time, as recorded or changed.

    ``work`` is one row per device event in the graph's order: ``work_ns``, ``pause_ns`` before it, and when
    it is ``ready``, counted from the start of its segment (null where no launch holds it up). ``parts`` makes
    the rows anew, those of one of ``graph.pieces`` after the other: most who ask want the numbers alone.
    """

    graph: ReplayGraph
    pace: float
    parts: Callable[[], Iterable[dict[str, pl.Series]]]
    numbers: Numbers
    effects: Effects

    @cached_property
    def work(self) -> pl.DataFrame:
        parts = pl.concat(map(pl.DataFrame, self.parts()))
        return parts.with_columns(pl.col("pause_ns", "work_ns").cast(pl.Float64))


def recorded(graph: ReplayGraph, pace: float = 1.0, free: frozenset[tuple[int, int]] = frozenset()) -> State:
    """The state as recorded, with host time multiplied by ``pace`` (quiet time: see ``quiet_pace``), and
    without the waits of the calls ``free`` (rank, row)."""
    opened = graph.segments["start_ns"].gather(graph.work["segment"])
    since = (pl.col("point_ns") - opened) * pace
    lengths = (graph.segments["end_ns"] - graph.segments["start_ns"]) * pace
    if pace != 1:
        launched, at_start, at_end = (each * (quiet_pace(pace) - pace) for each in graph.quiet_ns)
        launched = launched[graph.order.head(len(graph.work))] - at_start.gather(graph.work["segment"])
        since, lengths = since + launched, lengths + (at_end - at_start)
    # What a kernel waited for is not known: of one rank's streams, perhaps for multiprocessors that others
    # occupy.
    crowded = graph.streams > 1 and len(set(graph.ranks)) == 1
    work = graph.work.select(
        "rank",
        "id",
        pl.col("block").set_sorted(),
        "duration_ns",
        "pause_ns",
        crowded_ns=pl.col("lost_ns").clip(lower_bound=0) if crowded else pl.lit(0),
        work_ns=pl.when("meets").then(0).otherwise("work_ns"),
        ready=since + pl.col("latency_ns"),
    )
    transfers = [one.transfer_ns for one in graph.program if isinstance(one, CollectiveSync)]
    parts = [work[rows].to_dict() for rows in graph.pieces]
    numbers = Numbers(*_of_blocks(parts), lengths.cast(pl.Float64).to_list(), transfers, free)
    return State(graph, pace, lambda: parts, numbers, Effects(graph))


def changed(base: State, changes: Mapping[int, ReplayChange]) -> State:
    graph, numbers, left = base.graph, base.numbers, None
    found = {rank: base.effects.of(rank, change) for rank, change in changes.items()}
    shorter = reduce(shortest, (one.left for one in found.values()), None)
    if shorter is not None:
        left = constant(1.0, len(graph.work), pl.Float64).scatter(shorter["row"], shorter["left"])
        # A collective moves its data as fast as the rank that gains most from the change: all make the same.
        meet = (one for one in graph.program if isinstance(one, CollectiveSync))
        transfer = [one.transfer_ns * min(left[row] for row in one.rows) for one in meet]
        numbers = replace(numbers, transfer=transfer)
    gone = [_gone(base, rank, one.host) for rank, one in found.items() if one.host is not None]
    for _, shorter_ns in gone:
        lengths = pl.Series(numbers.host) - shorter_ns
        numbers = replace(numbers, host=lengths.to_list())
    pauses = {rank: change.pause_ns for rank, change in changes.items() if change.pause_ns < inf}
    free = {(rank, call) for rank, change in changes.items() for call in change.waits}
    numbers = replace(numbers, free=numbers.free | free)
    if left is None and not gone and not pauses:
        return replace(base, numbers=numbers)
    fewer = 0.0 if left is None else _share_gone(base, left)

    def parts() -> Iterator[dict[str, pl.Series]]:
        for rows, work in zip(graph.pieces, base.parts(), strict=True):
            if left is not None:
                work = _shortened(work, left[rows], fewer)
            for sooner_ns, _ in gone:
                work = {**work, "ready": work["ready"] - sooner_ns[rows]}
            for rank, pause_ns in pauses.items():
                pause = work["pause_ns"].cast(pl.Float64)
                longer = (pause > pause_ns) & (work["rank"] == rank) & (work["crowded_ns"] == 0)
                work = {**work, "pause_ns": pl.Series([pause_ns]).zip_with(longer, pause)}
            yield work

    block, ends = _of_blocks(parts())
    return replace(base, parts=parts, numbers=replace(numbers, block=block, ends=ends))


def _share_gone(base: State, left: pl.Series) -> float:
    """The share of the work that is gone, where several streams were in each other's way."""
    if not any(part["crowded_ns"].max() for part in base.parts()):
        return 0.0
    work_ns = pl.concat([part["work_ns"] for part in base.parts()])
    before, after = (float(each.sum()) for each in (work_ns, work_ns * left))
    return 1 - after / before if before else 0.0  # of one rank, where any is


def _shortened(work: dict[str, pl.Series], left: pl.Series, fewer: float) -> dict[str, pl.Series]:
    """Shorten the work: an event's stream saves the same share of what the event added to it."""
    kept = left > 0
    pause, ready = work["pause_ns"], work["ready"]
    if fewer:
        pause = pause - work["crowded_ns"] * fewer
    if not kept.all():
        pause = pause.zip_with(kept, pl.Series([0], dtype=pause.dtype))
        ready = ready.zip_with(kept, pl.Series([None], dtype=pl.Float64))
    return {**work, "work_ns": work["work_ns"] * left, "pause_ns": pause, "ready": ready}


DONE = pl.col("cost").cum_sum().alias("done")
ENDS = ((pl.col("end") - pl.col("done")).max() + pl.col("done").last()).fill_null(NEVER).alias("ends")


def _of_blocks(parts: Iterable[dict[str, pl.Series]]) -> tuple[list[float], list[float]]:
    """D and M of each block (see ``graph``)."""
    each: list[pl.DataFrame] = []
    for work in parts:
        cost, end = work["pause_ns"].cast(pl.Float64) + work["work_ns"], work["ready"] + work["work_ns"]
        table = pl.DataFrame({"block": work["block"], "cost": cost, "end": end}).with_columns(DONE)
        each.append(table.group_by("block", maintain_order=True).agg(pl.col("cost").sum(), ENDS))
    blocks = pl.concat(each)
    return blocks["cost"].to_list(), blocks["ends"].to_list()
