"""Whether a rank is later than ranks that do the same are by chance, in steps that are no cold start."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import polars as pl

from kinetoscope.analysis.compared.parts import Part
from kinetoscope.trace.schema import whole

# By what part of a step equal ranks differ in one step, by chance and the profiler: two H200s that do the
# same were found 0.2 apart. What a straggler loses is more than so many times the spread of as many steps.
CHANCE = 0.1
SPREADS = 2.5
NORMAL = 1.4826  # a normal distribution's spread by its median deviation
# By how much longer the hosts of equal ranks take for all that they do, under the profiler: found were 0.3.
PACE = 0.4
COLD = 3  # times as long as the median of those after it: a recording's first steps, which load and tune


def cold_steps(parts: Sequence[Part]) -> list[str]:
    """The names of first steps that took most ranks much longer than those after; with them what was recorded
    before the first step."""
    each = lengths(parts).group_by("name", maintain_order=True).agg(pl.col("length_ns").median())
    names, times = each["name"].to_list(), each["length_ns"].to_list()
    count = 0
    while len(times) > count + 1 and times[count] > COLD * median(times[count + 1 :]):
        count += 1
    return ["", *names[:count]] if count else []


def lengths(parts: Sequence[Part]) -> pl.DataFrame:
    """``rank``, ``name`` and ``length_ns`` of the steps in which ranks meet, in order."""
    found = [pl.DataFrame(schema={"rank": pl.Int32, "name": pl.String, "length_ns": pl.Int64})]
    for one in parts:
        steps = one.steps.filter(pl.col("name").is_in(one.collectives["step"].unique().implode()))
        rank = pl.lit(one.facts.rank, pl.Int32).alias("rank")
        found.append(steps.select(rank, "name", length_ns=pl.col("end_ns") - pl.col("start_ns")))
    return pl.concat(found)


def stands_out(late: pl.DataFrame, steps: pl.DataFrame, chance: float, *, after_cold: bool) -> bool:
    """Whether what a rank lost is more than chance, by how many steps there are and how much they differ.

    Args:
        late: the meetings into which it came last. Where no steps were recorded nothing is known of chance.
        steps: see ``lengths``.
        chance: the least by which steps differ, of a step.
        after_cold: of the first of them a part is not known, since its way began in a cold step.
    """
    names = steps["name"].unique(maintain_order=True)
    names = names[1:] if after_cold and len(names) > 1 else names
    if names.is_empty():
        return True
    lost = (
        names.to_frame("step")
        .join(late.group_by("step").agg(pl.col("lost_ns").clip(0).sum()), on="step", how="left")["lost_ns"]
        .fill_null(0)
    )
    apart = whole((lost - lost.median()).abs().median()) if len(lost) > 2 else 0
    spread = max(chance * whole(steps["length_ns"].median()), NORMAL * apart)
    return int(lost.sum()) > SPREADS * spread * len(lost) ** 0.5


def beyond_pace(late: pl.DataFrame, table: pl.DataFrame, rank: int, host: str) -> pl.DataFrame:
    """What a rank lost, without what its host loses by being slower at all that it does, by ``PACE`` or less.

    Args:
        late: the meetings into which it came last.
        table: collectives of all ranks, with ``host_ns``.
        host: the cause that is meant.
    """
    others = (
        table.filter(pl.col("rank") != rank, pl.col("host_ns") > 0)
        .group_by("meeting")
        .agg(pl.col("host_ns").median().alias("usual"))
    )
    ways = table.filter(pl.col("rank") == rank).join(others, on="meeting")
    pace = min(
        max(float(ways.select((pl.col("host_ns") / pl.col("usual")).median()).item() or 1.0) - 1, 0.0), PACE
    )
    slower = pl.when(pl.col("cause") == host).then(pace * pl.col("usual_host_ns")).otherwise(0)
    return late.with_columns((pl.col("lost_ns") - slower).cast(pl.Int64))
