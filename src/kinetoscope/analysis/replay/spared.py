"""Host time that goes away: by how much it makes a thread earlier at each of its instants.

How much goes away is a share of the time, which changes at some instants: a table of steps (``at_ns``,
sorted, and the ``share`` from there on; of several at one instant the last counts; before the first nothing
goes away).
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.time import intervals


def shares(host: pl.DataFrame) -> pl.DataFrame:
    """The steps of stretches (``start_ns``, ``end_ns``, ``share``): where several overlap, the largest."""
    found = [pl.DataFrame(schema={"at_ns": pl.Int64, "change": pl.Float64})]
    smaller = 0.0
    # Each share adds what it is above the next smaller one, wherever a stretch has it or more.
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
