"""Several timelines laid over each other, cut wherever one of them changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

NOTHING = -1


def overlay(layers: Mapping[str, pl.DataFrame], by: Sequence[str]) -> pl.DataFrame:
    """The stretches of time that at least one layer covers, each with the row of every layer that covers it.

    Args:
        layers: tables with ``start_ns``, ``end_ns``, the key columns ``by`` and the integer column ``row``.
            The intervals of one layer and key are disjoint (they may touch); empty ones cover nothing.
        by: the columns that keep timelines apart.

    Returns:
        ``by``, ``start_ns``, ``end_ns`` and, named as its layer, the ``row`` that covers the stretch or null;
        sorted by key and time.
    """
    keys = list(by)
    bounds = pl.concat(
        [
            table.lazy()
            .filter(pl.col("end_ns") > pl.col("start_ns"))
            .select(
                *keys,
                pl.col(bound).alias("start_ns"),
                pl.lit(bound == "start_ns").alias("opens"),  # where one ends and the next starts: end first
                (pl.col("row").cast(pl.Int64) if bound == "start_ns" else pl.lit(NOTHING, pl.Int64)).alias(
                    name
                ),
            )
            for name, table in layers.items()
            for bound in ("start_ns", "end_ns")
        ],
        how="diagonal",
    )
    names = list(layers)
    return (
        bounds.sort(*keys, "start_ns", "opens")
        .with_columns(
            pl.col("start_ns").shift(-1).over(keys).alias("end_ns"),
            *(pl.col(name).forward_fill().over(keys) for name in names),
        )
        .with_columns(pl.when(pl.col(name) != NOTHING).then(pl.col(name)).cast(pl.UInt32) for name in names)
        .filter(pl.col("end_ns") > pl.col("start_ns"), pl.any_horizontal(pl.col(names).is_not_null()))
        .select(*keys, "start_ns", "end_ns", *names)
        .collect()
    )
