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
    before = (slope.shift(1, fill_value=0.0) * at.diff().fill_null(0)).cum_sum()
    # The last edge before each instant: marked where the first instant after it is, and carried on.
    following = instants.search_sorted(at)
    newest = (following < len(instants)) & following.ne_missing(following.shift(-1))
    last = pl.repeat(None, len(instants), dtype=pl.UInt32, eager=True)
    numbers = pl.arange(0, len(at), eager=True, dtype=pl.UInt32)
    last = last.scatter(following.filter(newest), numbers.filter(newest)).forward_fill()
    gone = before.gather(last) + slope.gather(last) * (instants - at.gather(last))
    return gone.fill_null(0)


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
