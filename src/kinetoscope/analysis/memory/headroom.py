"""The peak without some of its memory, the history played again; and how much larger a batch fits."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory, split
from kinetoscope.trace.schema import whole


def peak_without(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """The most bytes allocated at once in the span in which the peak was looked for.

    Args:
        absent: ``bytes`` that are not there from the place ``start`` (null: from the beginning) to the place
            ``end`` (null: to the end). What is absent twice counts twice.
    """
    first, last = history.span
    absent = absent.select(pl.col("bytes", "start", "end").cast(pl.Int64))
    begun = absent.select(place=pl.col("start").fill_null(-1), change=-pl.col("bytes"))
    ended = absent.select(place="end", change="bytes").drop_nulls()
    changes = pl.concat([begun, ended]).group_by("place").agg(pl.col("change").sum()).sort("place")
    gone = changes.with_columns(gone=pl.col("change").cum_sum())
    table = (
        history.curve.table.sort("place")
        .join_asof(gone, on="place")
        .with_columns(pl.col("gone").fill_null(0))
    )
    inside = table.filter(pl.col("place").is_between(first, last))
    return whole(inside.select((pl.col("held") + pl.col("gone")).max()).item())


def saves(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """Bytes by which the peak gets lower."""
    return max(0, history.requested - peak_without(history, absent))


# What grows with the batch in proportion. A temporary of the optimizer does not, nor does the rest.
SCALES = ("activation", "input", "cache")


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the recorded batch fits.

    Attributes:
        low, high: where what is reserved beyond the requested bytes grows as well, and where it does not.
        fixed_bytes, scaling_bytes: of the bytes requested at the peak.
        room_bytes: what the device has for the allocator: all but what others, and the driver, hold.
    """

    low: float
    high: float
    fixed_bytes: int
    scaling_bytes: int
    room_bytes: int


def fits(history: DeviceHistory, failure: DeviceHistory | None = None) -> Fits | None:
    """None where the device's size is not known, or nothing grows with the batch.

    Args:
        failure: where an allocation of the device failed: more than it then had was not to be had.
    """
    counters = history.counters
    if counters is None or not counters.total_bytes:
        return None
    parts = dict(split(history).select("part", "bytes").iter_rows())
    here = history.at_peak
    passing = here.filter((pl.col("role") == "temporary") & ~pl.col("optimizer"))["bytes"].sum()
    scaling = sum(parts.get(part, 0) for part in SCALES) + int(passing)
    fixed = history.requested - scaling
    scaling += history.failed_bytes
    outside = counters.total_bytes - counters.free_bytes - counters.reserved_bytes
    room = counters.total_bytes - outside
    if failure is not None and failure.counters is not None:
        room = min(room, failure.counters.peak_reserved_bytes or room)
    if scaling <= 0:
        return None
    slack = max(1.0, history.reserved / max(1, fixed + scaling))
    low = (room / slack - fixed) / scaling
    high = (room - fixed) / scaling
    return Fits(
        low=max(0.0, low), high=max(0.0, high), fixed_bytes=fixed, scaling_bytes=scaling, room_bytes=room
    )
