"""Host time that goes away: by how much it makes a thread earlier at each of its instants."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.time import intervals


def gone_until(host: pl.DataFrame, instants: pl.Series) -> pl.Series:
    """How many ns of a thread have gone away before each instant.

    Args:
        host: stretches of it (``start_ns``, ``end_ns``, ``share``): where several overlap, the largest share
            of them goes away.
        instants: ns, sorted.
    """
    edges = _edges(host)
    if edges.is_empty():
        return pl.zeros(len(instants), pl.Float64, eager=True)
    at, slope = edges["at_ns"], edges["change"].cum_sum()
    since = (at - at[0]).cast(pl.Float64)  # exact: of a recording, not of an age
    # Between two edges what is gone is a line: by its slope, and where it meets the first edge.
    height = (slope.shift(1, fill_value=0.0) * since.diff().fill_null(0)).cum_sum() - slope * since
    lines = pl.DataFrame({"at": at, "slope": slope, "height": height})
    found = pl.DataFrame({"at": instants}).join_asof(lines, on="at", check_sortedness=False)
    gone = pl.col("height") + pl.col("slope") * (pl.col("at") - at[0])
    return found.select(gone.fill_null(0)).to_series()


def _edges(host: pl.DataFrame) -> pl.DataFrame:
    """Where the share that goes away changes (``at_ns``, sorted), and by how much (``change``): each share
    adds what it is above the next smaller one, wherever a stretch has it or more."""
    found = [pl.DataFrame(schema={"at_ns": pl.Int64, "change": pl.Float64})]
    smaller = 0.0
    for share in host["share"].unique().sort():
        covered = intervals.union(host.filter(pl.col("share") >= share))
        step = pl.lit(share - smaller)
        found += [covered.select(at_ns="start_ns", change=step), covered.select(at_ns="end_ns", change=-step)]
        smaller = share
    return pl.concat(found).sort("at_ns")
