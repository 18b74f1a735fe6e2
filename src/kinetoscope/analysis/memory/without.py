"""The peak, had some of the memory not been there: the history played again without it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.trace.schema import whole


def peak_without(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """Bytes that are held at most in the stretch that the peak was looked for in.

    Args:
        absent: ``bytes`` that are not there from the place ``start`` (null: from the beginning) to the place
            ``end`` (null: to the end). What is absent twice counts twice.
    """
    first, last = history.stretch
    absent = absent.select(pl.col("bytes", "start", "end").cast(pl.Int64))
    begun = absent.select(place=pl.col("start").fill_null(-1), change=-pl.col("bytes"))
    ended = absent.select(place="end", change="bytes").drop_nulls()
    changes = pl.concat([begun, ended]).group_by("place").agg(pl.col("change").sum()).sort("place")
    gone = changes.with_columns(pl.col("change").cum_sum().alias("gone"))
    table = (
        history.curve.table.sort("place")
        .join_asof(gone, on="place")
        .with_columns(pl.col("gone").fill_null(0))
    )
    inside = table.filter(pl.col("place").is_between(first, last))
    return whole(inside.select((pl.col("held") + pl.col("gone")).max()).item())


def saves(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """By how much the peak gets lower."""
    return max(0, history.requested - peak_without(history, absent))
