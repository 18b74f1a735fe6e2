"""How long a run would take if no rank were late, replayed from what each rank did on its own.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), at the grain of
collectives: a collective begins when its last rank is there and its stream is free, and takes as long as the
data needs. Each rank does its own work meanwhile, until it needs a collective's result. Without stragglers no
rank takes longer for its own work than usual (see ``excess``); stages of a pipeline compute equally long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice, starmap
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from kinetoscope.analysis.collectives.recorded import PAIR, SENDER
from kinetoscope.analysis.collectives.waiting import by_start
from kinetoscope.analysis.ranks.lateness import APART_NS, ON_DEVICE
from kinetoscope.analysis.ranks.rows import IdealRow


class Operation(NamedTuple):
    after: Sequence[int]  # places of the operations that it waits for, all of them before it
    # from their end to its beginning, as for the host or for what is no operation of its own; less than
    # nothing where it began before they had ended
    delay: float
    took: float  # without waiting
    # places of what must have ended too, however long before it began: what a receive was sent
    needs: Sequence[int] = ()


def replay(instances: Iterable[Sequence[Operation]]) -> list[float]:
    """When each operation ends, in the order given; whatever waits for nothing begins at 0. An instance is
    operations that meet, or one alone; an operation's place is its number among all of them."""
    ends: list[float] = []
    for instance in instances:
        came = [
            max(
                max([ends[place] for place in one.after], default=0.0) + one.delay,
                *[ends[place] for place in one.needs],
                0.0,
            )
            for one in instance
        ]
        ends += [max(came) + one.took for one in instance]
    return ends


ROUNDING_NS = 1.0


def ideal_row(recorded_ns: int, replayed_ns: int, ideal_ns: int) -> IdealRow:
    """The row of times in ns, without those of single ranks."""
    return IdealRow(
        recorded_us=recorded_ns / 1000,
        replayed_us=replayed_ns / 1000,
        error=replayed_ns / recorded_ns - 1 if recorded_ns else 0.0,
        slowdown=replayed_ns / ideal_ns if ideal_ns else 1.0,
        without={},
    )


class WithoutStragglers(NamedTuple):
    """The run replayed, and which share of its time goes once something is put right: of the time after its
    first step, since of that what was done before the first collective is not known."""

    row: IdealRow
    saved: Callable[[PutRight], float]


class PutRight(NamedTuple):
    """Causes that are put right: the lateness of ranks, or the transfers of collectives (``instance`` and the
    share of its time that stays)."""

    ranks: frozenset[int] = frozenset()
    transfers: Mapping[int, float] = MappingProxyType({})


class _TimedCollective(NamedTuple):
    instance: int
    step: str
    left_ns: float
    transfer_ns: float
    ranks: int


class _Collectives(NamedTuple):
    """Collectives in the order of time, and a row for each rank's end of each, in the same order.

    Positions are ns of the rank's own work since the first collective began: when it came (``ready``) and
    where it had nothing left to do without the collective's result (``needed``; infinite where that is not
    known), as recorded and without lateness. ``before_row`` is that of the one before it on its stream,
    ``other_row`` of what it waited for on another; 0 is none, and all are below ``rows``. What ``is_free``
    does not wait, since what it sends is buffered; what ``is_receiver`` of a broadcast or the like waits for
    its sender alone.
    """

    timed: list[_TimedCollective]
    ends: pl.DataFrame
    rows: int


class _Rank:
    """A rank under way: when it was at which positions of its own work, and which results it needs where."""

    def __init__(self) -> None:
        self.positions, self.times = array("d", [0.0]), array("d", [0.0])
        self.needs: list[tuple[float, float]] = []

    def at(self, position: float) -> float:
        place = max(bisect_right(self.positions, position) - 1, 0)
        return self.times[place] + max(0.0, position - self.positions[place])

    def goes_on(self, position: float, time: float = 0.0) -> None:
        """It goes on from a position, or from where it is if that is further on, not before that time."""
        if position > self.positions[-1]:
            self.times.append(max(time, self.at(position)))
            self.positions.append(position)
        else:
            self.times[-1] = max(time, self.times[-1])

    def comes_to(self, position: float) -> None:
        """It gets the results that it needs until there."""
        while self.needs and self.needs[0][0] <= position + ROUNDING_NS:
            self.goes_on(*heappop(self.needs))


class _Arrival(NamedTuple):
    at: float
    rank: _Rank
    row: int
    ready: float
    needed: float
    is_free: bool
    is_receiver: bool


def by_collectives(table: pl.DataFrame) -> WithoutStragglers | None:
    """The run replayed by its collectives; None where ranks share fewer than two."""
    collectives = _collectives(table)
    timed = collectives.timed
    if len(timed) < 2:
        return None

    def length(left: Sequence[float], begin: int = 1) -> int:
        """From the last end of the first so many collectives on."""
        return round(max(left) - max(left[:begin]))

    recorded = _left(collectives, PutRight())
    ideal = _left(collectives, PutRight(frozenset(collectives.ends["rank"])))
    recorded_ns = round(max(one.left_ns for one in timed) - timed[0].left_ns)
    row = ideal_row(recorded_ns, length(recorded), length(ideal))
    second = next((at for at, one in enumerate(timed) if one.step != timed[0].step), 1)
    after_first = max(1, length(recorded, second))

    def saved(remedy: PutRight) -> float:
        return 1 - length(_left(collectives, remedy), second) / after_first

    return WithoutStragglers(row, saved)


def _left(collectives: _Collectives, remedy: PutRight) -> list[float]:
    """When the last rank leaves each collective; what waits for nothing begins at 0."""
    ranks: defaultdict[int, _Rank] = defaultdict(_Rank)
    ended = array("d", [0.0]) * collectives.rows
    rows = collectives.ends.iter_rows()
    left: list[float] = []
    for one in collectives.timed:
        came: list[_Arrival] = []
        for row, number, *places, before, other, is_free, is_receiver in islice(rows, one.ranks):
            rank = ranks[number]
            ready, needed = places[2:] if number in remedy.ranks else places[:2]
            rank.comes_to(ready)
            if needed > ready + ROUNDING_NS:
                rank.goes_on(ready)
            at = max(rank.at(ready), ended[before], ended[other])
            came.append(_Arrival(at, rank, row, ready, needed, is_free, is_receiver))
        transfer = one.transfer_ns * remedy.transfers.get(one.instance, 1.0)
        together = [arrival for arrival in came if not arrival.is_receiver] or came
        last = max(arrival.at for arrival in together)
        sent = (together[0].at if together[0].is_free else last) + transfer
        for arrival in came:
            at = arrival.at if arrival.is_free else last
            if arrival.is_receiver and together is not came:
                at = max(arrival.at, sent)
            ended[arrival.row] = end = at + transfer
            if not arrival.needed > arrival.ready + ROUNDING_NS:
                arrival.rank.goes_on(arrival.ready, end)
            elif arrival.needed < inf:
                heappush(arrival.rank.needs, (arrival.needed, end))
        left.append(max(ended[arrival.row] for arrival in came))
    return left


# What is replayed of collectives, and what is asked besides: few columns, since ranks may be many.
_REPLAYED = ["rank", "instance", "step", "semantics", "start_ns", "end_ns", "clock_ns", "transfer_ns",
             "waiting_ns", "sender"]  # fmt: skip
_KNOWN = [*_REPLAYED, "device", "id", "stream", "waits_for", "is_bound", "own_ns", "usual_own_ns",
          "host_late_ns", "blocked_ns", "overlapping_ns", *ON_DEVICE]  # fmt: skip


def _collectives(table: pl.DataFrame) -> _Collectives:
    known = ("instance", "transfer_ns", "clock_ns")
    # One order for all ranks, that of replaying; those that end at once, as batched ones, begin apart or not.
    table = _positions(table.select(cs.by_name(*_KNOWN, require_all=False)))
    rows = len(table) + 1
    table = table.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in known)).with_columns(
        came_ns=pl.col("start_ns") - pl.col("clock_ns"), left_ns=pl.col("end_ns") - pl.col("clock_ns")
    )
    order = (pl.col(name).median().over("instance") for name in ("left_ns", "came_ns"))
    table = table.sort(*order, "instance", "rank")
    is_free = (pl.col("semantics") == PAIR) & (pl.col("waiting_ns") == 0)
    is_sent = pl.col("semantics") == SENDER
    is_sender = is_sent & (pl.col("rank") == pl.col("sender"))
    places = ("ready", "needed", "usual_ready", "usual_needed")
    ends = table.select(
        "row", "rank", *places, pl.col("before_row", "other_row").fill_null(0),
        is_free=is_free | is_sender, is_receiver=is_sent & ~is_sender,
    )  # fmt: skip
    timed = table.group_by("instance", maintain_order=True).agg(
        pl.col("step").first(),
        pl.col("left_ns").max(),
        pl.col("transfer_ns").min().cast(pl.Float64),
        pl.len(),
    )
    return _Collectives(list(starmap(_TimedCollective, timed.iter_rows())), ends, rows)


def _positions(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``row``, ``ready`` and ``needed``, both as ``usual_…``, ``before_row`` and ``other_row`` (see
    ``_Collectives``).

    When a collective was ready that began right after another one of its stream had ended is not known: not
    later than it began, nor than on the ranks that it did not keep waiting.
    """
    key = ["rank", "device"]
    came = pl.col("start_ns") - pl.col("clock_ns")
    table = (
        by_start(table)
        .with_row_index("row", 1)
        .with_columns(
            is_alone=pl.col("clock_ns").is_null() | pl.col("instance").is_null(),
            before_row=pl.col("row").shift(1).over(*key, "stream"),
        )
    )
    others = table.select(*key, waits_for="id", other_row="row")
    other = [*key, "waits_for"]
    table = table.with_columns(
        table.select(other).join(others, on=other, how="left", maintain_order="left")["other_row"]
    )
    # What its first collective came after the first of all; one that is no other rank's is its own work.
    own = pl.when("is_alone").then(pl.col("own_ns").fill_null(0) + pl.col("blocked_ns")).otherwise("own_ns")
    table = table.with_columns(own=own.cast(pl.Float64), began=came.min()).with_columns(
        own=pl.coalesce("own", (came - pl.col("began")).cast(pl.Float64), 0.0)
    )
    if bool((table["semantics"] == PAIR).any()):
        usual = pl.col("own") + pl.sum_horizontal(ON_DEVICE) * pl.col("more")
        table = _with_stages(table)
    else:
        usual = pl.coalesce("usual_own_ns", "own")
    table = table.with_columns(usual_own=usual.clip(0))
    is_first = pl.col("step").ne_missing(pl.col("step").shift(1).over(key))
    # All ranks of a collective are at the same place of their step, whatever other groups they are in.
    step = [*key, "step"]
    numbers = table.select(step).unique(maintain_order=True).with_row_index("segment")
    numbered = table.select(step).join(numbers, on=step, how="left", maintain_order="left")
    segment = "segment"  # one number: windows over three columns take several times their memory
    table = (
        table.with_columns(numbered["segment"])
        .with_columns(
            *(pl.col(name).cum_sum().over(key).alias(f"{name}_at") for name in ("own", "usual_own")),
            faster=(pl.col("usual_own").sum() / pl.col("own").sum()).over(segment).fill_nan(1.0),
            since=pl.when(is_first).then(0.0).otherwise("usual_own").cum_sum().over(segment),
        )
        .drop("own", "usual_own")
    )
    is_bound = pl.col("is_bound")
    is_blocked = pl.col("blocked_ns") > APART_NS
    needed = pl.col("since") + pl.col("overlapping_ns") * pl.col("faster")
    # A result that kept no rank waiting was needed at some later time, which is not known; it had to be there
    # when the next one of its stream that did keep ranks waiting was.
    of_blocked = needed.filter(is_blocked).median().over("instance")
    of_others = pl.col("since").filter(~is_bound).min().over("instance")
    # Where it kept all of them waiting, it may have been ready as early as the one before it.
    ready = pl.when(~is_bound).then("since").when(of_others.is_not_null()).then(
        pl.min_horizontal("since", of_others)
    )  # fmt: skip
    # Not one expression: a window inside a window yields 0 on Polars 2.1.
    table = table.with_columns(
        ready_since=ready,
        needed_since=pl.when(is_blocked).then(needed)
        .when(of_blocked.is_null()).then(float("inf"))
        .otherwise(pl.max_horizontal(needed, of_blocked)),
    ).with_columns(
        ready_since=pl.col("ready_since").forward_fill().over(segment, "stream").fill_null(0.0)
    )  # fmt: skip

    def position(since: str, at: str, faster: pl.Expr) -> pl.Expr:
        return pl.col(at) + (pl.col(since) - pl.col("since")) / faster

    # A device whose host is late has nothing to do during a collective that others compute during: it has not
    # been given that work yet. Put right, its rank comes to it, and needs it, where the others do.
    is_like, late = pl.col("semantics") != PAIR, pl.col("host_late_ns").fill_null(0).sum().over(segment)
    table = (
        table.with_columns(
            late=pl.when(is_like).then(late).otherwise(0),
            least=pl.col("ready_since").quantile(0.5, "lower").over("instance"),
        )
        .with_columns(
            most=pl.col("needed_since").quantile(0.5, "higher").over("instance"),
        )
        .with_columns(
            usual_ready_since=pl.max_horizontal(
                pl.min_horizontal("ready_since", "least"), pl.col("ready_since") - pl.col("late")
            ),
            usual_needed_since=pl.min_horizontal(
                pl.max_horizontal("needed_since", "most"), pl.col("needed_since") + pl.col("late")
            ),
        )
        .drop("late", "least", "most")
    )

    recorded, same = pl.col("faster").clip(1e-9), pl.lit(1.0)
    return table.with_columns(
        ready=position("ready_since", "own_at", recorded),
        needed=position("needed_since", "own_at", recorded),
        usual_ready=position("usual_ready_since", "usual_own_at", same),
        usual_needed=position("usual_needed_since", "usual_own_at", same),
    ).select(*_REPLAYED, "ready", "needed", "usual_ready", "usual_needed", "row", "before_row", "other_row")


def _with_stages(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``more``: by which share a stage of a pipeline would compute longer or shorter in a step, were all
    equally long: as their mean, since what one of them does not do another must. A step that was cut short is
    not stretched."""
    own = pl.sum_horizontal(ON_DEVICE).sum().over("rank", "step")
    table = table.with_columns(computed_ns=own)
    stages = table.unique(["rank", "step"]).group_by("rank").agg(stage=pl.col("computed_ns").median())
    table = table.join(stages, on="rank", how="left", maintain_order="left")
    average = pl.lit(stages["stage"].mean())
    return table.with_columns(more=average / pl.max_horizontal("computed_ns", "stage", 1) - 1)
