"""The interval of time that a recording's fractions are taken of."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time.periods import closing_ns, periods
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole


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
    """The recorded steps by the device's clock (``periods``); without steps, first to last event of the
    recording.

    As long as the steps together, and recorded from end to end: where the last step's end was not, the window
    begins by so much earlier, with what came before the first step's first work.

    The profiler's own span (category ``trace``) is neither host nor device and does not count.
    An empty recording has an empty window at 0.
    """
    if len(trace.steps):
        table, closing = periods(trace), closing_ns(trace)
        return Window(
            whole(table["start_ns"].min()) - closing, whole(table["end_ns"].max()) - closing, "steps"
        )
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
