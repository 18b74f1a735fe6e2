"""How launches went: their latency, and how deep the queue was."""

from __future__ import annotations

import msgspec


class QueuePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the window: launches made in it, and how deep the queue was at them."""

    start_us: float
    launches: int
    depth_mean: float
    depth_max: int


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """How the launches on one device went. Latency: from the call's start to the start of its work. Depth:
    launches made whose work had not ended, this one included."""

    rank: int
    device: int
    launches: int
    launches_per_step: float | None
    work_per_launch: float
    host_us: float
    host_median_us: float
    host_p90_us: float
    host_us_per_launch: float | None
    """From one launch of a thread to its next, at the median."""
    latency_median_us: float
    latency_p10_us: float
    latency_p90_us: float
    depth_median: float
    depth_max: int
    on_idle_device: int
    shorter_than_call: int
    """Launches whose work took the device less time than the call took the host."""
    short_device_us: float
    queue: list[QueuePoint]
