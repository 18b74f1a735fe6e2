"""Collectives as NCCL's Inspector logs them: without starts and ends, but numbered and timed on each rank.

That is enough for those that end together: what a rank was in one longer than the shortest is waiting, and
the shortest came last.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.collectives.recorded import KINDS, TOGETHER

# One row a rank's collective; ``number`` in its ``communicator``; ``group`` as the program named that.
INSPECTED = {
    "communicator": pl.String,
    "group": pl.String,
    "size": pl.Int64,
    "rank": pl.Int64,
    "name": pl.String,
    "number": pl.Int64,
    "bytes": pl.Int64,
    "time_ns": pl.Float64,
    "algorithm_gbps": pl.Float64,
    "bus_gbps": pl.Float64,
}


def inspected(table: pl.DataFrame) -> pl.DataFrame:
    """One row a group, size, kind and bytes, those waited in most first.

    Returns:
        ``group``, ``size``, ``kind``, ``bytes``, ``groups``, ``meetings``, ``incomplete`` (of which not every
        rank's log is there), ``transfer_ns`` and the bandwidths (of the last rank, at the median of the
        complete; null without), ``waiting_ns``, ``last_rank``, ``last_times`` and ``told`` (see
        ``waits``; ranks are those of the communicator).
    """
    kind = pl.coalesce(
        pl.when(pl.col("name").str.contains(one.pattern)).then(pl.lit(one.name)) for one in KINDS
    )
    together = [one.name for one in KINDS if one.semantics == TOGETHER]
    key = ("communicator", "group", "size", "kind", "bytes", "number")
    instances = (
        table.with_columns(kind.alias("kind"))
        .group_by(*key)
        .agg(
            (pl.col("rank").n_unique() < pl.col("size").first()).alias("incomplete"),
            pl.col("time_ns").min().alias("transfer_ns"),
            (pl.col("time_ns") - pl.col("time_ns").min()).sum().alias("waiting_ns"),
            pl.col("rank").sort_by("time_ns", "rank").first().alias("last_rank"),
            ((pl.col("time_ns") == pl.col("time_ns").min()).sum() == 1).alias("alone"),
            pl.col("algorithm_gbps", "bus_gbps").max(),
        )
        .with_columns((pl.col("kind").is_in(together) & ~pl.col("incomplete")).alias("known"))
    )
    known, last = pl.col("known"), pl.col("last_rank")
    measured = ("transfer_ns", "algorithm_gbps", "bus_gbps")
    return (
        instances.with_columns(
            *(pl.when(known).then(name).alias(name) for name in (*measured, "waiting_ns")),
            pl.when(known & pl.col("alone")).then(last).alias("last_rank"),
        )
        .group_by("group", "size", "kind", "bytes")
        .agg(
            pl.col("communicator").n_unique().alias("groups"),
            pl.len().alias("meetings"),
            pl.col("incomplete").sum(),
            pl.col(*measured).median(),
            pl.col("waiting_ns").sum(),
            last.drop_nulls().mode().min(),
            (last == last.drop_nulls().mode().min()).sum().alias("last_times"),
            last.count().alias("told"),
        )
        .sort("waiting_ns", "group", "kind", "bytes", descending=[True, False, False, False])
    )
