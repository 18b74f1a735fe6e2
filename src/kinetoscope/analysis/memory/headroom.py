"""The peak without some of its memory, the history played again; and how much larger a batch fits."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memory.lifetimes import changes
from kinetoscope.analysis.memory.owners import stack_owners
from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.analysis.memory.rows import Fits
from kinetoscope.trace.schema import whole


def peak_without(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """The most bytes allocated at once in the span in which the peak was looked for. ``absent``: ``bytes``
    that are not there from the place ``start`` (null: from the beginning) to the place ``end`` (null: to the
    end). What is absent twice counts twice."""
    first, last = history.span
    gone = changes(absent).select("place", gone=pl.col("change").cum_sum())
    table = history.curve.table.sort("place").join_asof(gone, on="place")
    inside = table.filter(pl.col("place").is_between(first, last))
    return whole(inside.select((pl.col("held") - pl.col("gone").fill_null(0)).max()).item())


def saves(history: DeviceHistory, absent: pl.DataFrame) -> int:
    """Bytes by which the peak gets lower."""
    return max(0, history.requested - peak_without(history, absent))


# What grows with the batch in proportion. A temporary of the optimizer does not, nor does the rest.
SCALES = ("activation", "input", "cache")


def fits(history: DeviceHistory, failure: DeviceHistory | None = None) -> Fits | None:
    """None where the device's size is not known, or nothing grows with the batch. Where an allocation of the
    device failed (``failure``), more than it then had was not to be had."""
    room = _room(history, failure)
    if room is None:
        return None
    high = (room - pl.col("fixed")) / pl.col("scaling")
    limits = _moments(history).filter(pl.col("scaling") > 0).with_columns(high=high).sort("high", "place")
    if limits.is_empty():
        return None
    fixed, scaling, most = limits.select("fixed", "scaling", "high").row(0)
    wanted = history.failed_bytes  # it found no hole: a segment would have been taken for it
    slack = max(1.0, (history.reserved + wanted) / max(1, history.requested + wanted))
    low = (room / slack - fixed) / scaling
    most = min(most, 1.0) if wanted else most  # the whole of it has failed
    return Fits(
        low=max(0.0, low), high=max(0.0, most), fixed_bytes=fixed, scaling_bytes=scaling, room_bytes=room
    )


def lacking(history: DeviceHistory) -> int | None:
    """The bytes that an allocation which failed would have needed; None: none did, or it is not known."""
    room = _room(history, history) if history.failed_bytes else None
    return None if room is None else max(0, history.failed_bytes - max(0, room - history.reserved))


def _room(history: DeviceHistory, failure: DeviceHistory | None) -> int | None:
    """Bytes that the device has for the allocator; without the program's account, what the allocator had of
    it when an allocation failed, and what the driver had left that was less than it requested."""
    counters = history.counters
    if counters is not None and counters.total_bytes:
        room = counters.free_bytes + counters.reserved_bytes
        if failure is not None and failure.counters is not None:
            room = min(room, failure.counters.peak_reserved_bytes or room)
        return room
    if failure is None or failure.free_bytes is None:
        return None
    left = failure.free_bytes if failure.free_bytes < failure.failed_bytes else 0
    return max(whole(failure.curve.table["reserved"].max()), failure.reserved + left)


def _moments(history: DeviceHistory) -> pl.DataFrame:
    """By place of the step what of the requested bytes grows with the batch (``scaling``), and what does not
    (``fixed``); of a failure, of the step in which it was, with what could not be had at its end."""
    first, last = history.span
    known, failed = history.known, history.failed_bytes
    if failed and "step" in known.columns:
        first = whole(known.filter(pl.col("step") == pl.col("step").max())["start"].min())
    role = pl.col("role")
    grows = known.filter(role.is_in(SCALES) | ((role == "temporary") & ~pl.col("optimizer")))
    lacking = pl.when(pl.col("place") == last).then(failed).otherwise(0)
    scaling = pl.col("scaling").fill_null(0) + (lacking if _grows(history) else 0)
    curve = history.curve.table.select(pl.col("place").cast(pl.Int64), "held").sort("place")
    return (
        curve.join_asof(changes(grows).select("place", scaling=pl.col("change").cum_sum()), on="place")
        .filter(pl.col("place").is_between(first, last))
        .select("place", scaling=scaling.cast(pl.Int64), needed=pl.col("held") + lacking)
        .select("place", "scaling", fixed=pl.col("needed") - pl.col("scaling"))
    )


def _grows(history: DeviceHistory) -> bool:
    """Whether what could not be had grows with the batch: no parameter does, no optimizer, no collective."""
    stack = history.failed_stack
    if stack is None:
        return True
    said = stack_owners(history.snapshot).row(stack, named=True)
    return not (said["built"] or said["optimizer"] or said["communication"])
