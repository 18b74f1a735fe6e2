"""The stretch of time that a recording's fractions are taken of."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace


@dataclass(frozen=True)
class Window:
    """From ``start_ns`` to ``end_ns``; ``basis`` is ``steps`` or ``recording``."""

    start_ns: int
    end_ns: int
    basis: str

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@remembered
def window(trace: Trace) -> Window:
    """The recorded steps, first start to last end; without steps, first to last event of the recording.

    The profiler's own span (category ``trace``) is neither host nor device and does not count.
    An empty recording has an empty window at 0.
    """
    if len(trace.steps):
        start, end = _reach(trace.steps)
        return Window(start, end, "steps")
    host = trace.host_events.select("start_ns", "duration_ns")
    host = host.filter(~matching(trace.host_events, "category", "^trace$"))
    reaches = [_reach(table) for table in (host, trace.device_events) if len(table)]
    if not reaches:
        return Window(0, 0, "recording")
    return Window(min(start for start, _ in reaches), max(end for _, end in reaches), "recording")


def _reach(table: pl.DataFrame) -> tuple[int, int]:
    start, end = table.select(
        pl.col("start_ns").min(), (pl.col("start_ns") + pl.col("duration_ns")).max().alias("end_ns")
    ).row(0)
    return int(start), int(end)
