"""A graph's numbers once a change is made: all blocks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

import polars as pl

from kinetoscope.analysis.replay.change import Change
from kinetoscope.analysis.replay.engine import NEVER, Numbers
from kinetoscope.analysis.replay.graph import Graph, Meeting
from kinetoscope.analysis.replay.spared import gone_until


@dataclass(frozen=True, eq=False)
class State:
    """A graph with host time scaled by ``pace``, as recorded or changed.

    ``work`` is one row a device event in the graph's order: ``work_ns``, ``pause_ns`` before it, and when it
    is ``ready``, counted from the start of its stretch (null where no launch holds it up).
    """

    graph: Graph
    pace: float
    work: pl.DataFrame
    numbers: Numbers


def recorded(graph: Graph, pace: float = 1.0) -> State:
    """As it was recorded, but for host time, which is multiplied by ``pace``."""
    opened = graph.stretches["start_ns"].gather(graph.work["stretch"])
    # What a kernel waited for is not known: of one rank's streams, for room beside what others run.
    crowded = graph.streams > 1 and len(set(graph.ranks)) == 1
    work = graph.work.select(
        "rank",
        "id",
        pl.col("block").set_sorted(),
        "duration_ns",
        "pause_ns",
        crowded_ns=pl.when(crowded).then(pl.col("lost_ns").clip(lower_bound=0)).otherwise(0),
        work_ns=pl.when("meets").then(0).otherwise("work_ns").cast(pl.Float64),
        left=pl.lit(1.0),
        ready=(pl.col("point_ns") - opened) * pace + pl.col("latency_ns"),
    )
    lengths = graph.stretches.select((pl.col("end_ns") - pl.col("start_ns")) * pace).to_series()
    transfers = [one.transfer_ns for one in graph.program if isinstance(one, Meeting)]
    numbers = Numbers(*_of_blocks(work), lengths.cast(pl.Float64).to_list(), transfers)
    return State(graph, pace, work, numbers)


def changed(base: State, changes: Mapping[int, Change]) -> State:
    """With these changes, by rank."""
    work, numbers = base.work, base.numbers
    device = {rank: change.device for rank, change in changes.items() if len(change.device)}
    if device:
        work = _shortened(base, device)
        numbers = replace(numbers, transfer=_transfers(base, work))
    spared = {rank: change.host for rank, change in changes.items() if len(change.host)}
    if spared:
        work, host = _spared(base, work, spared)
        numbers = replace(numbers, host=host)
    pauses = {rank: change.pause_ns for rank, change in changes.items() if change.pause_ns < inf}
    for rank, longest in pauses.items():
        usual = (pl.col("rank") == rank) & (pl.col("crowded_ns") == 0)
        shorter = pl.when(usual).then(pl.col("pause_ns").clip(upper_bound=longest))
        work = work.with_columns(shorter.otherwise("pause_ns").alias("pause_ns"))
    if device or spared or pauses:
        block, ends = _of_blocks(work)
        numbers = replace(numbers, block=block, ends=ends)
    free = {(rank, call) for rank, change in changes.items() for call in change.waits}
    return replace(base, work=work, numbers=replace(numbers, free=frozenset(free)))


def _shortened(base: State, device: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """What an event saves of its own duration, its stream saves of what it added to it. What is gone needs no
    launch, and no pause before it."""
    saved = pl.zeros(len(base.work), pl.Float64, eager=True)
    for rank, table in device.items():
        known = table.filter(table["id"] < len(base.graph.places[rank]))
        rows = base.graph.places[rank].gather(known["id"])
        replayed = rows.is_not_null()
        saved = _raised(saved, rows.filter(replayed), known["saved_ns"].filter(replayed))
    left = (1 - saved / pl.col("duration_ns")).clip(0, 1)
    gone = pl.col("left") <= 0
    rest = (pl.col("work_ns") * pl.col("left")).sum() / pl.col("work_ns").sum()  # of one rank, where any is
    return base.work.with_columns(left.alias("left")).with_columns(
        pl.when(gone)
        .then(0)
        .otherwise(pl.col("pause_ns") - pl.col("crowded_ns") * (1 - rest.fill_nan(1)))
        .alias("pause_ns"),
        pl.col("work_ns") * pl.col("left"),
        pl.when(~gone).then("ready").alias("ready"),
    )


def _raised(values: pl.Series, rows: pl.Series, to: pl.Series) -> pl.Series:
    """At each of these rows the largest of what it had and what is given for it, often once, seldom twice."""
    while len(rows):
        less = values.gather(rows) < to
        rows, to = rows.filter(less), to.filter(less)
        values = values.scatter(rows, to)
    return values


def _transfers(base: State, work: pl.DataFrame) -> list[float]:
    """A collective moves its data as fast as the rank that gains most from the change: all make the same."""
    left = work["left"]
    return [
        one.transfer_ns * min(left[row] for row in one.rows)
        for one in base.graph.program
        if isinstance(one, Meeting)
    ]


def _spared(
    base: State, work: pl.DataFrame, spared: Mapping[int, pl.DataFrame]
) -> tuple[pl.DataFrame, list[float]]:
    """Launches and stretches of host time, sooner and shorter by what went away before them."""
    graph = base.graph
    launches, stretches = len(graph.work), len(graph.stretches)
    gone = pl.zeros(launches + 2 * stretches, pl.Float64, eager=True)
    for (rank, strand), instants in graph.instants.items():
        if rank in spared:
            host = spared[rank].filter(pl.col("lane").is_in(graph.lanes_of(rank, strand)))
            gone = gone.scatter(instants["slot"], gone_until(host, instants["at"]))
    at_launch, at_start, at_end = (
        gone.slice(first, length)
        for first, length in ((0, launches), (launches, stretches), (launches + stretches, stretches))
    )
    less = (at_launch - at_start.gather(graph.work["stretch"])) * base.pace
    host = pl.Series(base.numbers.host) - (at_end - at_start) * base.pace
    return work.with_columns((pl.col("ready") - less).alias("ready")), host.to_list()


def _of_blocks(work: pl.DataFrame) -> tuple[list[float], list[float]]:
    """D and M of each block (see ``graph``)."""
    cost = pl.col("pause_ns") + pl.col("work_ns")
    table = work.select("block", "ready", "work_ns", cost=cost, done=cost.cum_sum())
    blocks = table.group_by("block", maintain_order=True).agg(
        pl.col("cost").sum(),
        ((pl.col("ready") + pl.col("work_ns") - pl.col("done")).max() + pl.col("done").last())
        .fill_null(NEVER)
        .alias("ends"),
    )
    return blocks["cost"].to_list(), blocks["ends"].to_list()
