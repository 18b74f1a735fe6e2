"""Interval arithmetic on tables of half-open intervals ``[start_ns, end_ns)``.

Every function takes tables with the integer columns ``start_ns`` and ``end_ns`` and, in ``by``, the columns that
keep sets apart (rank, device, stream, …); sets of different keys never meet. What is returned is *merged*: the
intervals of one key are disjoint, do not touch, are sorted by start and are never empty. Other columns are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

BOUNDS = ["start_ns", "end_ns"]


def union(table: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that at least one interval covers. Empty and negative intervals cover nothing."""
    keys = list(by)
    reached = pl.col("end_ns").cum_max().shift(1)
    begins = pl.col("start_ns") > (reached.over(keys) if keys else reached)
    return (
        table.lazy()
        .select(*keys, *BOUNDS)
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort(*keys, "start_ns")
        .with_columns(begins.fill_null(True).cum_sum().alias("island"))
        .group_by(*keys, "island", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max())
        .drop("island")
        .collect()
    )


def intersect(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that both tables cover."""
    return _overlay(left, right, by, (pl.col("left") > 0) & (pl.col("right") > 0))


def subtract(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Every instant that ``left`` covers and ``right`` does not."""
    return _overlay(left, right, by, (pl.col("left") > 0) & (pl.col("right") == 0))


def length(table: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Nanoseconds in each key's intervals, as column ``length_ns``; meant for merged tables."""
    return table.group_by(*by, maintain_order=True).agg(length_of().alias("length_ns"))


def total(table: pl.DataFrame) -> int:
    """Nanoseconds in all intervals of a merged table."""
    return int(table.select(length_of()).item() or 0)


def length_of() -> pl.Expr:
    return (pl.col("end_ns") - pl.col("start_ns")).sum()


def clip(table: pl.DataFrame, start: int | pl.Expr, end: int | pl.Expr) -> pl.DataFrame:
    """The parts of the rows between two instants; rows and columns stay as they are, rows wholly outside go."""
    low = pl.lit(start) if isinstance(start, int) else start
    high = pl.lit(end) if isinstance(end, int) else end
    return table.with_columns(
        pl.max_horizontal("start_ns", low).alias("start_ns"),
        pl.min_horizontal("end_ns", high).alias("end_ns"),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def _overlay(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str], keep: pl.Expr) -> pl.DataFrame:
    """Sweep over the bounds of both merged tables, keeping the stretches whose cover satisfies ``keep``."""
    keys = list(by)
    running = [pl.col(c).cum_sum().over(keys) if keys else pl.col(c).cum_sum() for c in ("left", "right")]
    until = pl.col("at").shift(-1)
    return (
        pl.concat([_steps(union(left, by), keys, 1, 0), _steps(union(right, by), keys, 0, 1)])
        .group_by(*keys, "at")
        .agg(pl.col("left").sum(), pl.col("right").sum())
        .sort(*keys, "at")
        .with_columns(*running)
        .with_columns((until.over(keys) if keys else until).alias("end_ns"))
        .filter(keep)
        .select(*keys, pl.col("at").alias("start_ns"), "end_ns")
        .collect()
    )


def _steps(merged: pl.DataFrame, keys: list[str], left: int, right: int) -> pl.LazyFrame:
    """Each interval as two bounds: cover rises by one at its start and falls by one at its end."""
    return pl.concat(
        [
            merged.lazy().select(
                *keys,
                pl.col(bound).alias("at"),
                pl.lit(sign * left, pl.Int32).alias("left"),
                pl.lit(sign * right, pl.Int32).alias("right"),
            )
            for bound, sign in (("start_ns", 1), ("end_ns", -1))
        ]
    )
