"""Whether a rank is later than ranks that do the same are by chance, in steps that are no cold start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, median, stdev

import polars as pl

from kinetoscope.analysis.ranks.parts import Part
from kinetoscope.statistics.intervals import student_t
from kinetoscope.trace.schema import whole

# By what part of a step equal ranks differ in one step, by chance and the profiler: two H200s that do the
# same were found 0.2 apart. What a straggler loses is more than so many times the spread of as many steps.
CHANCE = 0.1
SPREADS = 2.5
NORMAL = 1.4826  # a normal distribution's spread by its median deviation
# By how much longer the hosts of equal ranks take for all that they do, under the profiler: found were 0.3.
PACE = 0.4
# What one rank loses in each of several steps is no chance either if it hardly varies: by Student's t, wrong
# for one of so many equal jobs. A few steps may be alike by chance, so it is taken to vary by so much of one.
MISTAKEN = 0.01
VARIES = 0.005
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


def lost_by_step(late: pl.DataFrame, steps: pl.DataFrame, rank: int | None, *, after_cold: bool) -> list[int]:
    """What a rank lost in each step more than any other rank did, ns, below zero where another one lost more:
    of equal ranks it is so as often as not, or more often. Of no rank, what all of them lost together. Empty
    where no steps were recorded.

    Args:
        late: the collectives into which somebody came late, with ``last`` and ``lost_ns``.
        steps: see ``lengths``.
        after_cold: of the first of them a part is not known, since its way began in a cold step.
    """
    names = steps["name"].unique(maintain_order=True).to_list()
    names = names[1:] if after_cold and len(names) > 1 else names
    lost = late.group_by("step", "last").agg(pl.col("lost_ns").clip(0).sum())
    known: dict[str, dict[int, int]] = {name: {} for name in names}
    for step, last, length in lost.filter(pl.col("step").is_in(names)).iter_rows():
        known[step][last] = length
    if rank is None:
        return [sum(each.values()) for each in known.values()]
    return [each.pop(rank, 0) - max(each.values(), default=0) for each in known.values()]


def stands_out(lost: Sequence[int], steps: pl.DataFrame, chance: float, *, is_one: bool) -> bool:
    """Whether what one rank lost, or all did in turn, is more than chance, by how many steps there are and
    how much they differ. By chance one rank is late in some steps and early in others; some rank is late in
    each. Where no steps were recorded nothing is known of chance.

    Args:
        lost: see ``lost_by_step``.
        steps: see ``lengths``.
        chance: the least by which steps differ, of a step.
    """
    if not lost:
        return True
    apart = whole(median(abs(one - median(lost)) for one in lost)) if len(lost) > 2 else 0
    spread = max(chance * whole(steps["length_ns"].median()), NORMAL * apart)
    return sum(lost) > SPREADS * spread * len(lost) ** (0.5 if is_one else 1)


def loses_in_each_step(lost: Sequence[int], steps: pl.DataFrame) -> bool:
    """Whether one rank loses about as much in each step, as equal ranks do not. Two steps do not tell.

    Args:
        lost: see ``lost_by_step``. steps: see ``lengths``.
    """
    if len(lost) < 3:
        return False
    varies = max(stdev(lost), VARIES * whole(steps["length_ns"].median()))
    certain = student_t(1 - MISTAKEN / steps["rank"].n_unique(), len(lost) - 1)
    return mean(lost) > certain * varies / math.sqrt(len(lost))


def beyond_pace(late: pl.DataFrame, table: pl.DataFrame, rank: int, host: str) -> pl.DataFrame:
    """What a rank lost, without what its host loses by being slower at all that it does, by ``PACE`` or less.

    Args:
        late: the collectives into which it came last.
        table: collectives of all ranks, with ``host_ns``.
        host: the cause that is meant.
    """
    others = (
        table.filter(pl.col("rank") != rank, pl.col("host_ns") > 0)
        .group_by("instance")
        .agg(pl.col("host_ns").median().alias("usual"))
    )
    ways = table.filter(pl.col("rank") == rank).join(others, on="instance")
    pace = min(
        max(float(ways.select((pl.col("host_ns") / pl.col("usual")).median()).item() or 1.0) - 1, 0.0), PACE
    )
    slower = pl.when(pl.col("cause") == host).then(pace * pl.col("usual_host_ns")).otherwise(0)
    return late.with_columns((pl.col("lost_ns") - slower).cast(pl.Int64))
