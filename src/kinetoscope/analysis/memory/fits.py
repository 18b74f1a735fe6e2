"""How much larger a batch fits, from what of the peak grows with it."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory, split

# What grows with the batch in proportion. A temporary of the optimizer does not, nor does the rest.
SCALES = ("activation", "input", "cache")


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the recorded batch fits.

    Attributes:
        low, high: where what is reserved beyond what is asked for grows as well, and where it does not.
        fixed_bytes, scaling_bytes: of what was asked for at the peak.
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
        low=max(0.0, low),
        high=max(0.0, high),
        fixed_bytes=fixed,
        scaling_bytes=scaling,
        room_bytes=room,
    )
