"""Which event of a wanted sort encloses each host event."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.aggregates import whole


def nearest(host: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    """The innermost wanted event around each host event, itself included.

    Args:
        host: a trace's ``host_events`` (``id`` is the row number, ``parent`` a row or null).
        wanted: one boolean a row.

    Returns:
        One row of ``host_events`` (UInt32) a row; null where no wanted event encloses it.

    Each row points at its parent unless it is wanted or at the top; following the pointers of pointers
    doubles the distance every time, so a tree of depth d takes log2(d) passes over the column and no Python
    loop.
    """
    if not wanted.any():
        return pl.repeat(None, len(host), dtype=pl.UInt32, eager=True)
    table = pl.DataFrame({"id": host["id"], "parent": host["parent"], "wanted": wanted})
    target = table.select(
        pl.when(pl.col("wanted")).then(pl.col("id")).otherwise(pl.coalesce("parent", "id"))
    ).to_series()
    deepest = whole(host["depth"].max())
    for _ in range(deepest.bit_length()):
        target = target.gather(target)
    found = wanted.gather(target)
    return pl.select(pl.when(found).then(target).alias("nearest")).to_series()


def caller(device: pl.DataFrame) -> pl.Series:
    """The host event that put each device event there: its launch, else the op that its id names."""
    return device.select(pl.coalesce("launch", "op").alias("caller")).to_series()
