"""How long a run would take if no rank were late, replayed from what each rank did on its own.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), at the grain of
collectives: a collective begins when its last rank is there and its stream is free, and takes as long as the
data needs. Each rank does its own work meanwhile, until it comes to where it needs a collective's result.
Replayed as recorded it gives the recorded time, and by how much it does not is said. Without stragglers no
rank takes longer for its own work than usual (see ``excess``); stages of a pipeline, whose two ends of a
send do not do the same, then compute equally long, as in the paper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, SENDER
from kinetoscope.analysis.ranks.lateness import APART_NS, ON_DEVICE


class Operation(NamedTuple):
    """An operation of one rank.

    Args:
        after: places of the operations that it waits for, all of them before it.
        delay: from their end to its beginning, as for the host or for what is no operation of its own; less
            than nothing where it began before they had ended.
        took: without waiting.
        is_free: it does not wait for the others, as a sender whose data are buffered.
        needs: places of what must have ended too, however long before it began: what a receive was sent.
    """

    after: Sequence[int]
    delay: float
    took: float
    is_free: bool = False
    needs: Sequence[int] = ()


def replay(instances: Iterable[Sequence[Operation]]) -> list[float]:
    """When each operation ends, in the order given; whatever waits for nothing begins at 0.

    Args:
        instances: operations that meet, or one alone; an operation's place is its number among all of them.
    """
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
        last = max(came)
        for one, own in zip(instance, came, strict=True):
            ends.append((own if one.is_free else last) + one.took)
    return ends


ROUNDING_NS = 1.0


class IdealRow(msgspec.Struct, frozen=True, kw_only=True):
    """The time between the first collective and the last: recorded, replayed (``error``: by which share that
    is longer), without stragglers, and without the lateness of one rank.

    Of a pipeline whose passes are known (``grain``: passes, else collectives) the time of ``steps``
    steps, and how many times as long they would take, without stragglers but for one stage's (``by_stage``:
    its ranks), one data-parallel worker's (``by_worker``: its ranks; of many those that lose most, of one
    none) or one sort of operation's (``by_operation``; host: what no operation explains). ``why`` they are
    not known.
    """

    recorded_us: float
    replayed_us: float
    error: float
    ideal_us: float
    slowdown: float
    without: dict[int, float]
    grain: str = "collectives"
    steps: int | None = None
    by_stage: dict[str, float] = {}
    by_worker: dict[str, float] = {}
    by_operation: dict[str, float] = {}
    why: str = ""


def ideal_row(recorded_ns: int, replayed_ns: int, ideal_ns: int, without: Mapping[int, int]) -> IdealRow:
    """The row of times in ns; ``without`` by rank, with that rank alone as fast as its peers."""
    return IdealRow(
        recorded_us=recorded_ns / 1000,
        replayed_us=replayed_ns / 1000,
        error=replayed_ns / recorded_ns - 1 if recorded_ns else 0.0,
        ideal_us=ideal_ns / 1000,
        slowdown=replayed_ns / ideal_ns if ideal_ns else 1.0,
        without={rank: length / 1000 for rank, length in without.items()},
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


class _End(NamedTuple):
    """One rank's end of a collective. Positions are ns of the rank's own work since the first collective
    began: when it came (``ready``) and where it had nothing left to do without the collective's result
    (``needed``; infinite where that is not known), as recorded and without lateness."""

    rank: int
    ready: float
    needed: float
    usual_ready: float
    usual_needed: float
    after: tuple[int | None, int | None]  # rows: before it on its stream, and what it waited for on another
    is_free: bool  # does not wait: what it sends is buffered
    is_receiver: bool  # of a broadcast or the like: waits for its sender alone


class _TimedCollective(NamedTuple):
    instance: int
    step: str
    left_ns: float
    transfer_ns: float
    rows: list[int]
    ends: list[_End]


class _Rank:
    """A rank under way."""

    def __init__(self) -> None:
        # At which position of its own work it was after which operations, and which collectives it needs
        # where.
        self.trail: list[tuple[float, list[int]]] = [(0.0, [])]
        self.needs: list[tuple[float, int]] = []

    @property
    def position(self) -> float:
        return self.trail[-1][0]

    def at(self, position: float) -> tuple[list[int], float]:
        """After which operations it comes to a position, and how long after."""
        place = bisect_right(self.trail, position, key=lambda one: one[0]) - 1
        came, after = self.trail[max(place, 0)]
        return after, max(0.0, position - came)

    def goes_on(self, position: float, after: list[int]) -> None:
        self.trail.append((max(position, self.position), after))


def by_collectives(table: pl.DataFrame) -> WithoutStragglers | None:
    """The run replayed by its collectives; None where ranks share fewer than two.

    Args:
        table: collectives of all ranks with what they waited and by how much longer ranks took.
    """
    collectives = _collectives(table)
    if len(collectives) < 2:
        return None

    second = next((at for at, one in enumerate(collectives) if one.step != collectives[0].step), 1)

    def replayed(remedy: PutRight, begin: int = 1) -> int:
        """From the last end of the first so many collectives on."""
        groups, ends = _operations(collectives, remedy)
        times = [[replayed[place] for place in own] for replayed in (replay(groups),) for own in ends]
        first = max(max(own) for own in times[:begin])
        return round(max(max(own) for own in times) - first)

    after_first = max(1, replayed(PutRight(), second))
    everyone = frozenset(end.rank for one in collectives for end in one.ends)
    row = ideal_row(
        round(max(one.left_ns for one in collectives) - collectives[0].left_ns),
        replayed(PutRight()),
        replayed(PutRight(everyone)),
        {},
    )

    def saved(remedy: PutRight) -> float:
        return 1 - replayed(remedy, second) / after_first

    return WithoutStragglers(row, saved)


def _operations(
    collectives: Sequence[_TimedCollective], remedy: PutRight
) -> tuple[list[list[Operation]], list[list[int]]]:
    """The operations to replay, and the places of each collective's ends among them."""
    ranks: dict[int, _Rank] = {}
    places: dict[int | None, int] = {}  # of rows
    groups: list[list[Operation]] = []
    ends: list[list[int]] = []
    count = 0

    def add(group: list[Operation]) -> int:
        nonlocal count
        groups.append(group)
        count += len(group)
        return count - len(group)

    for one in collectives:
        transfer = one.transfer_ns * remedy.transfers.get(one.instance, 1.0)
        came: dict[int, tuple[_End, float, float, Operation]] = {}
        for row, end in zip(one.rows, one.ends, strict=True):
            rank = ranks.setdefault(end.rank, _Rank())
            usual = end.rank in remedy.ranks
            ready, needed = (end.usual_ready, end.usual_needed) if usual else (end.ready, end.needed)
            rank.needs.sort()
            while rank.needs and rank.needs[0][0] <= ready + ROUNDING_NS:
                position, place = rank.needs.pop(0)
                if position > rank.position:
                    rank.goes_on(position, [add([Operation(*rank.at(position), 0.0)])])
                rank.goes_on(position, [*rank.trail[-1][1], place])
            if needed > ready + ROUNDING_NS and ready > rank.position:
                rank.goes_on(ready, [add([Operation(*rank.at(ready), 0.0)])])
            before = tuple(places[row] for row in end.after if row in places)
            operation = Operation(*rank.at(ready), transfer, end.is_free, before)
            came[row] = end, ready, needed, operation
        receivers = [row for row, (end, *_) in came.items() if end.is_receiver]
        together = [row for row in came if row not in receivers] or receivers
        first = add([came[row][-1] for row in together])
        places |= {row: first + place for place, row in enumerate(together)}
        for row in receivers if together is not receivers else ():
            operation = came[row][-1]
            places[row] = add([operation._replace(needs=(*operation.needs, first))])
        ends.append([places[row] for row in came])
        for row, (end, ready, needed, _) in came.items():
            rank, place = ranks[end.rank], places[row]
            if needed > ready + ROUNDING_NS:
                rank.needs.append((needed, place))
            else:
                rank.goes_on(ready, [place] if ready >= rank.position else [*rank.trail[-1][1], place])
    return groups, ends


def _collectives(table: pl.DataFrame) -> list[_TimedCollective]:
    """In the order of time."""
    known = ("instance", "transfer_ns", "clock_ns")
    # One order for all ranks, that of replaying; those that end at once, as batched ones, begin apart or not.
    table = (
        _positions(table)
        .filter(pl.all_horizontal(pl.col(name).is_not_null() for name in known))
        .with_columns(
            came_ns=pl.col("start_ns") - pl.col("clock_ns"), left_ns=pl.col("end_ns") - pl.col("clock_ns")
        )
    )
    order = (pl.col(name).median().over("instance") for name in ("left_ns", "came_ns"))
    table = table.sort(*order, "instance", "rank")
    is_free = (pl.col("semantics") == PAIR) & (pl.col("waiting_ns") == 0)
    columns = ("rank", "ready", "needed", "usual_ready", "usual_needed", "after", "is_free", "is_receiver")
    is_sent = pl.col("semantics") == SENDER
    is_sender = is_sent & (pl.col("rank") == pl.col("sender"))
    table = table.with_columns(is_free=is_free | is_sender, is_receiver=is_sent & ~is_sender)
    lines = table.group_by("instance", maintain_order=True).agg(
        pl.col("step").first(),
        pl.col("left_ns").max(),
        pl.col("transfer_ns").min().cast(pl.Float64),
        "row",
        *columns,
    )
    return [
        _TimedCollective(instance, step, left, took, rows, [_End(*end) for end in zip(*each, strict=True)])
        for instance, step, left, took, rows, *each in lines.iter_rows()
    ]


def _positions(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``row``, ``ready``, ``needed`` (see ``_End``), both as ``usual_…``, and ``after``.

    When a collective was ready that began right after another one of its stream had ended is not known: not
    later than it began, nor than on the ranks that it did not keep waiting.
    """
    key = ["rank", "device"]
    came = pl.col("start_ns") - pl.col("clock_ns")
    table = (
        table.sort(*key, "start_ns", "id")
        .with_row_index("row")
        .with_columns(
            is_alone=pl.col("clock_ns").is_null() | pl.col("instance").is_null(),
            after=pl.col("row").shift(1).over(*key, "stream"),
        )
    )
    others = table.select(*key, waits_for="id", other="row")
    table = table.join(others, on=[*key, "waits_for"], how="left", maintain_order="left").with_columns(
        after=pl.concat_list("after", "other")
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
    segment = (*key, "step")
    table = table.with_columns(
        *(pl.col(name).cum_sum().over(key).alias(f"{name}_at") for name in ("own", "usual_own")),
        faster=(pl.col("usual_own").sum() / pl.col("own").sum()).over(segment).fill_nan(1.0),
        since=pl.when(is_first).then(0.0).otherwise("usual_own").cum_sum().over(segment),
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
        ready_since=pl.col("ready_since").forward_fill().over(*segment, "stream").fill_null(0.0)
    )  # fmt: skip

    def position(since: str, at: str, faster: pl.Expr) -> pl.Expr:
        return pl.col(at) + (pl.col(since) - pl.col("since")) / faster

    recorded, same = pl.col("faster").clip(1e-9), pl.lit(1.0)
    return table.with_columns(
        ready=position("ready_since", "own_at", recorded),
        needed=position("needed_since", "own_at", recorded),
        usual_ready=position("ready_since", "usual_own_at", same),
        usual_needed=position("needed_since", "usual_own_at", same),
    )


def _with_stages(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``more``: by which share a stage of a pipeline would compute longer or shorter in a step, were all
    equally long. What one of them does not do another must, so that is their mean and not the shortest.

    Each is as long as its median step, but longer in one that is; a step that was cut short is not stretched.
    """
    own = pl.sum_horizontal(ON_DEVICE).sum().over("rank", "step")
    table = table.with_columns(computed_ns=own)
    stages = table.unique(["rank", "step"]).group_by("rank").agg(stage=pl.col("computed_ns").median())
    table = table.join(stages, on="rank", how="left", maintain_order="left")
    average = pl.lit(stages["stage"].mean())
    return table.with_columns(more=average / pl.max_horizontal("computed_ns", "stage", 1) - 1)
