"""The interval of time that a recording's fractions are taken of."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.rows import END, matching, rows
from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.engines import engine_step
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed, whole

# Marks this near to each other, as a share of the step or in time, leave nothing between them that is no
# step: the profiler itself takes some microseconds to make a mark.
CONTIGUOUS, CONTIGUOUS_NS = 0.05, 50_000

PERIODS = {
    "step": pl.UInt32,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "host_start_ns": pl.Int64,
    "host_end_ns": pl.Int64,
}


def periods(trace: Trace) -> pl.DataFrame:
    """One row per step, in order; columns as in ``PERIODS``, ``step`` is its row in the trace's ``steps``.

    A serving engine's step is its own work on the device, from the first to the last: what the engine does
    on the host between two of them is of neither.

    On the device that did most of the steps' work; without device work both clocks are the host's. Where the
    host's steps follow each other, so do the device's: each ends where the next begins. The last ends where
    the next step's first work stands, if it was recorded; else with its own work, or as long after the host's
    end as a first work follows a mark at the least, whichever is later.
    """
    return _measured(trace)[0]


@remembered
def _measured(trace: Trace) -> tuple[pl.DataFrame, int]:
    """The periods, and how much of the last one lies behind the host's last mark and was not recorded (ns):
    in a steady loop it is what lies between the first mark and the first work."""
    steps = trace.steps.select(pl.col("id").alias("step"), "name", host_start_ns="start_ns", host_end_ns=END)
    if steps.is_empty():
        return pl.DataFrame(schema=PERIODS), 0
    launched, closing = _launched(trace), 0
    host = list(zip(steps["host_start_ns"], steps["host_end_ns"], strict=True))
    reach = {step: (first, last) for step, first, last in _reach(launched).iter_rows()}
    if not reach:
        starts, ends = [start for start, _ in host], [end for _, end in host]
    elif engine_step(steps["name"][0]) is not None:
        starts = _starts(steps["step"].to_list(), host, reach)
        ends = [reach.get(step, (start, start))[1] for step, start in enumerate(starts)]
        table = steps.with_columns(pl.Series("start_ns", starts), pl.Series("end_ns", _in_turn(starts, ends)))
        return table.select(typed(PERIODS)), 0
    else:
        starts = _starts(steps["step"].to_list(), host, reach)
        # How soon a step's first work follows its mark at the least. The first step begins as soon: what is
        # later is time of its own, unless the device was still busy with what went before.
        lag = max(0, min(start - mark for start, (mark, _) in zip(starts, host, strict=True)))
        ran_before = work(trace).filter(pl.col("start_ns") < starts[0], device=launched["device"][0])
        starts[0] = max(host[0][0] + lag, min(starts[0], whole(ran_before["end_ns"].max())))
        ends = [max(end, reach.get(step, (end, end))[1]) for step, (_, end) in enumerate(host)]
        ends[-1], closing = _end(trace, launched, starts[-1], host[-1], lag, reach[max(reach)][1])
    for row, ((start, end), (following, _)) in enumerate(pairwise(host)):
        if following - end <= max(CONTIGUOUS * (end - start), CONTIGUOUS_NS):
            ends[row] = starts[row + 1]
    table = steps.with_columns(pl.Series("start_ns", starts), pl.Series("end_ns", _in_turn(starts, ends)))
    return table.select(typed(PERIODS)), closing


def _launched(trace: Trace) -> pl.DataFrame:
    """Work of the device that did most for the steps, with ``launched_ns``."""
    table = work(trace).select("device", "step", "launch", "start_ns", "end_ns", "duration_ns")
    if table["launch"].null_count() < len(table):
        table = table.filter(pl.col("launch").is_not_null())
    inside = table.filter(pl.col("step").is_not_null())
    most = inside.group_by("device").agg(pl.sum("duration_ns")).sort("duration_ns", "device").tail(1)
    table = table.join(most.select("device"), on="device", how="semi")
    launched = trace.host_events["start_ns"][table["launch"]]
    return table.with_columns(launched_ns=pl.coalesce(launched, "start_ns"))


def _reach(launched: pl.DataFrame) -> pl.DataFrame:
    """(step, first start, last end)"""
    return (
        launched.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
        .sort("step")
    )


def _starts(steps: list[int], host: list[tuple[int, int]], reach: dict[int, tuple[int, int]]) -> list[int]:
    """Where each step's first work stands; without any, as long after its mark as in the one before."""
    lag = next(first - host[step][0] for step, (first, _) in reach.items())
    starts: list[int] = []
    for step, (mark, _) in zip(steps, host, strict=True):
        if step in reach:
            lag = reach[step][0] - mark
        start = mark + lag
        starts.append(max(start, starts[-1]) if starts else start)
    return starts


def _end(
    trace: Trace, launched: pl.DataFrame, start: int, host: tuple[int, int], lag: int, worked_ns: int
) -> tuple[int, int]:
    """Where the last step ends on the device, and how much of that lies behind what was recorded. ``host``:
    its marks; ``lag``: how soon a step's first work follows its mark at the least; ``worked_ns``: end of its
    work."""
    mark, left = host
    after = launched.filter(pl.col("launched_ns").is_between(left, left + (left - mark) // 2))
    if len(after) and (following := whole(after["start_ns"].min())) > start:
        return following, 0
    # A wait after its last launch is the recorder's own.
    waits = trace.host_events["start_ns"][rows(trace.host_events, "name", SYNCHRONIZATION)]
    wait = whole(waits.filter(waits.is_between(mark, left)).max())
    left = wait if wait >= whole(launched["launched_ns"].max()) else left
    end = max(worked_ns, left + lag)
    return end, max(0, end - max(worked_ns, left))


def _in_turn(starts: list[int], ends: list[int]) -> list[int]:
    """Ends of steps, none of which is before its start or after the next one's."""
    limits = [*starts[1:], max(ends[-1], starts[-1])]
    return [max(start, min(end, limit)) for start, end, limit in zip(starts, ends, limits, strict=True)]


class Window(Struct, frozen=True):
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
    recording, but for the profiler's own span. An empty recording has an empty window at 0.

    As long as the steps together, and recorded from end to end: where the last step's end was not, the window
    begins by so much earlier.
    """
    if len(trace.steps):
        table, closing = _measured(trace)
        return Window(
            whole(table["start_ns"].min()) - closing, whole(table["end_ns"].max()) - closing, "steps"
        )
    host = trace.host_events.select("start_ns", "duration_ns")
    host = host.filter(~matching(trace.host_events, "category", "^trace$"))
    tables = [table for table in (host, trace.device_events) if len(table)]
    reaches: list[tuple[int, int]] = [table.select(pl.min("start_ns"), END.max()).row(0) for table in tables]
    if not reaches:
        return Window(0, 0, "recording")
    return Window(min(start for start, _ in reaches), max(end for _, end in reaches), "recording")
