"""Host time between the syncs of a thread, and what each sync waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.threads import logical_threads
from kinetoscope.analysis.replay.waits import waits
from kinetoscope.trace.model import Trace

SEGMENTS = {
    "rank": pl.Int32,
    "thread": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "passed_ns": pl.Int64,
}
BEFORE = -1  # instead of a row: what a stream had been given before the recording


class Passed(NamedTuple):
    """A sync: after which segment (the next one follows), when it was passed, the call that waited (if it is
    one), for which work of which streams, and how long it took once that was done."""

    segment: int
    at_ns: int
    call: int | None = None
    targets: tuple[tuple[int, int], ...] = ()  # stream, row of launched
    tail_ns: int = 0


class HostSegments(NamedTuple):
    """A rank's host time: ``table`` (columns: ``SEGMENTS``, ``passed_ns`` when the sync before it was
    passed), the syncs, and each thread's first and last segment. The last is empty: it is the thread's end.
    """

    table: pl.DataFrame
    syncs: list[Passed]
    ends: list[tuple[int, int]]


class _Call(NamedTuple):
    call: int
    start_ns: int
    end_ns: int
    streams: list[int]
    rows: list[int | None]
    done_ns: int | None


def segments(trace: Trace, within: Spans) -> HostSegments:
    """The threads' time inside the spans."""
    calls = (
        waits(trace)
        .group_by("thread", "call", maintain_order=True)
        .agg(pl.col("start_ns", "end_ns").first(), "stream", "row", pl.col("done_ns").max())
        .sort("start_ns")
    )
    rows: list[tuple[int, int, int, int, int]] = []
    syncs: list[Passed] = []
    ends: list[tuple[int, int]] = []
    for thread, until in _until(trace).iter_rows():
        own = calls.filter(pl.col("thread") == thread).drop("thread")
        first = len(rows)
        pending = [_Call(*row) for row in own.iter_rows()]
        for passed, start, end in _of_thread(pending, _within(within, until), first, syncs):
            rows.append((trace.rank, thread, start, end, passed))
        end = rows[-1][3]
        rows.append((trace.rank, thread, end, end, end))
        ends.append((first, len(rows) - 1))
    return HostSegments(pl.DataFrame(rows, schema=SEGMENTS, orient="row"), syncs, ends)


def _until(trace: Trace) -> pl.DataFrame:
    """``thread``, and when its threads' last event ended; where nothing was launched, the last of any."""
    end = (pl.col("start_ns") + pl.col("duration_ns")).max()
    if trace.device_events.is_empty():
        return logical_threads(trace).select("thread").join(trace.host_events.select(end), how="cross")
    by_lane = trace.host_events.group_by("lane").agg(end)
    by_thread = by_lane.join(logical_threads(trace), on="lane").group_by("thread")
    return by_thread.agg(pl.col("start_ns").max()).sort("thread")


def _within(within: Spans, until: int) -> Spans:
    """Without steps a thread ends with its last event, not with the recording."""
    if within.steps:
        return within
    return replace(within, bounds=tuple((start, max(start, min(end, until))) for start, end in within.bounds))


def _of_thread(
    calls: list[_Call], within: Spans, number: int, syncs: list[Passed]
) -> list[tuple[int, int, int]]:
    """(passed, start, end) of a thread's segments, of which the first is ``number``; adds their syncs."""
    found: list[tuple[int, int, int]] = []
    for start, end in within.bounds:
        passed = start
        for call in calls:
            if not start <= call.start_ns < end:
                continue
            if within.steps and call.end_ns > end:
                end = call.start_ns  # what crosses the last mark is not the step's
                break
            found.append((passed, start, call.start_ns))
            tail = call.end_ns - max(call.start_ns, call.done_ns or 0)
            passed, start = max(call.end_ns, call.done_ns or 0), call.end_ns
            targets = tuple(
                (stream, BEFORE if row is None else row)
                for stream, row in zip(call.streams, call.rows, strict=True)
            )
            syncs.append(Passed(number + len(found) - 1, passed, call.call, targets, max(0, tail)))
        found.append((passed, start, max(start, end)))
        syncs.append(Passed(number + len(found) - 1, max(passed, end)))
    return found
