"""A graph's numbers once a change is made: all blocks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import inf

import polars as pl

from kinetoscope.analysis.replay.change import Change
from kinetoscope.analysis.replay.effects import Effects, shortest
from kinetoscope.analysis.replay.engine import NEVER, Numbers
from kinetoscope.analysis.replay.graph import CollectiveSync, Graph


@dataclass(frozen=True, eq=False)
class State:
    """A graph with host time scaled by ``pace``, as recorded or changed.

    ``work`` is one row a device event in the graph's order: ``work_ns``, ``pause_ns`` before it, and when it
    is ``ready``, counted from the start of its segment (null where no launch holds it up).
    """

    graph: Graph
    pace: float
    work: pl.DataFrame
    numbers: Numbers
    effects: Effects


def recorded(graph: Graph, pace: float = 1.0) -> State:
    """As it was recorded, but for host time, which is multiplied by ``pace``."""
    opened = graph.segments["start_ns"].gather(graph.work["segment"])
    # What a kernel waited for is not known: of one rank's streams, for room beside what others run.
    crowded = graph.streams > 1 and len(set(graph.ranks)) == 1
    work = graph.work.select(
        "rank",
        "id",
        pl.col("block").set_sorted(),
        "duration_ns",
        pl.col("pause_ns").cast(pl.Float64),
        crowded_ns=pl.when(crowded).then(pl.col("lost_ns").clip(lower_bound=0)).otherwise(0),
        work_ns=pl.when("meets").then(0).otherwise("work_ns").cast(pl.Float64),
        ready=(pl.col("point_ns") - opened) * pace + pl.col("latency_ns"),
    )
    lengths = graph.segments.select((pl.col("end_ns") - pl.col("start_ns")) * pace).to_series()
    transfers = [one.transfer_ns for one in graph.program if isinstance(one, CollectiveSync)]
    numbers = Numbers(*_of_blocks(work), lengths.cast(pl.Float64).to_list(), transfers)
    return State(graph, pace, work, numbers, Effects(graph))


def changed(base: State, changes: Mapping[int, Change]) -> State:
    """With these changes, by rank."""
    work, numbers = base.work, base.numbers
    found = [base.effects.of(rank, change) for rank, change in changes.items()]
    left = reduce(shortest, (one.left for one in found), None)
    if left is not None:
        work = _shortened(work, left)
        numbers = replace(numbers, transfer=_transfers(base, left))
    for host in (one.host for one in found if one.host is not None):
        work = work.with_columns(work["ready"] - host.sooner * base.pace)
        lengths = pl.Series(numbers.host) - host.shorter * base.pace
        numbers = replace(numbers, host=lengths.to_list())
    for rank, change in changes.items():
        if change.pause_ns < inf:
            pause = work["pause_ns"]
            longer = (pause > change.pause_ns) & (work["rank"] == rank) & (work["crowded_ns"] == 0)
            longest = pl.Series([change.pause_ns], dtype=pause.dtype)
            work = work.with_columns(longest.zip_with(longer, pause).alias("pause_ns"))
    if work is not base.work:
        block, ends = _of_blocks(work)
        numbers = replace(numbers, block=block, ends=ends)
    free = {(rank, call) for rank, change in changes.items() for call in change.waits}
    return replace(base, work=work, numbers=replace(numbers, free=frozenset(free)))


def _shortened(work: pl.DataFrame, left: pl.Series) -> pl.DataFrame:
    """What an event saves of its own duration, its stream saves of what it added to it. What is gone needs no
    launch, and no pause before it."""
    kept = left > 0
    shorter = work["work_ns"] * left
    before, after = (float(each.sum()) for each in (work["work_ns"], shorter))
    gone = 1 - after / before if before else 0.0  # of one rank, where any is
    pause = work["pause_ns"]
    if work["crowded_ns"].max():
        pause = pause - work["crowded_ns"] * gone
    if kept.all():
        return work.with_columns(shorter, pause)
    nothing, none = pl.Series([0.0]), pl.Series([None], dtype=pl.Float64)
    return work.with_columns(shorter, pause.zip_with(kept, nothing), work["ready"].zip_with(kept, none))


def _transfers(base: State, left: pl.Series) -> list[float]:
    """A collective moves its data as fast as the rank that gains most from the change: all make the same."""
    return [
        one.transfer_ns * min(left[row] for row in one.rows)
        for one in base.graph.program
        if isinstance(one, CollectiveSync)
    ]


def _of_blocks(work: pl.DataFrame) -> tuple[list[float], list[float]]:
    """D and M of each block (see ``graph``)."""
    cost = work["pause_ns"] + work["work_ns"]
    done = cost.cum_sum()
    late = work["ready"] + work["work_ns"] - done
    table = pl.DataFrame({"block": work["block"], "cost": cost, "done": done, "late": late})
    blocks = table.group_by("block", maintain_order=True).agg(
        pl.col("cost").sum(), (pl.col("late").max() + pl.col("done").last()).fill_null(NEVER).alias("ends")
    )
    return blocks["cost"].to_list(), blocks["ends"].to_list()
