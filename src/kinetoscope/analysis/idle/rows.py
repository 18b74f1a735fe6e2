"""Idle time by cause, and how far the host launches ahead, as rows of the document."""

from __future__ import annotations

import msgspec


class IdleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Over all causes ``idle_us`` sums to the device's idle time."""

    device: int
    cause: str
    idle_us: float
    share_of_window: float
    rank: int = 0
    gaps: int = 0  # those that it has a part in
    busy_inside_collectives_us: float = 0.0
    """In addition to the idle time, the *busy* time in which nothing but a collective ran on the device and
    that one only waited for another rank: in the row ``waiting-for-rank``, which is there for it even where
    no time was idle for that cause."""
    text: str | None = None  # the fact that explains most of it; null where none was idle


class QueuePoint(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of the window: launches made in it, and how deep the queue was at them."""

    start_us: float
    launches: int
    depth_max: int


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """How the launches on one device went. Latency: from the call's start to the start of its work. Depth:
    launches made whose work had not ended, this one included."""

    rank: int
    device: int
    launches: int
    launches_per_step: float | None  # their mean; null without steps
    work_per_launch: float  # above 1 with graphs
    host_median_us: float
    host_us_per_launch: float | None
    """From one launch of a thread to its next, at the median: what one costs with all the Python and dispatch
    around it."""
    latency_median_us: float
    latency_p10_us: float
    latency_p90_us: float
    depth_median: float
    depth_max: int
    on_idle_device: int  # launches that found the device with nothing to do
    shorter_than_call: int  # launches whose work took the device less time than the call took the host
    queue: list[QueuePoint]
