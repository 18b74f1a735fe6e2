"""Host time between the joints of a strand, and what each joint waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.replay.spans import Spans
from kinetoscope.analysis.replay.threads import strands
from kinetoscope.analysis.replay.waits import waits
from kinetoscope.trace.model import Trace

STRETCHES = {
    "rank": pl.Int32,
    "strand": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "passed_ns": pl.Int64,
}
BEFORE = -1  # instead of a row: what a stream had been given before the recording


class Passed(NamedTuple):
    """A joint: after which stretch (the next one follows), when it was passed, the call that waited (if it is
    one), for which work of which streams, and how long it took once that was done."""

    stretch: int
    at_ns: int
    call: int | None = None
    targets: tuple[tuple[int, int], ...] = ()  # stream, row of launched
    tail_ns: int = 0


class Stretches(NamedTuple):
    """A rank's host time: ``table`` (columns: ``STRETCHES``, ``passed_ns`` when the joint before it was
    passed), the joints, and each strand's first and last stretch. The last is empty: it is the strand's end.
    """

    table: pl.DataFrame
    joints: list[Passed]
    ends: list[tuple[int, int]]


class _Call(NamedTuple):
    call: int
    start_ns: int
    end_ns: int
    streams: list[int]
    rows: list[int | None]
    done_ns: int | None


def stretches(trace: Trace, within: Spans) -> Stretches:
    """The strands' time inside the spans."""
    calls = (
        waits(trace)
        .group_by("strand", "call", maintain_order=True)
        .agg(pl.col("start_ns", "end_ns").first(), "stream", "row", pl.col("done_ns").max())
        .sort("start_ns")
    )
    rows: list[tuple[int, int, int, int, int]] = []
    joints: list[Passed] = []
    ends: list[tuple[int, int]] = []
    for strand, until in _until(trace).iter_rows():
        own = calls.filter(pl.col("strand") == strand).drop("strand")
        first = len(rows)
        pending = [_Call(*row) for row in own.iter_rows()]
        for passed, start, end in _of_strand(pending, _within(within, until), first, joints):
            rows.append((trace.rank, strand, start, end, passed))
        end = rows[-1][3]
        rows.append((trace.rank, strand, end, end, end))
        ends.append((first, len(rows) - 1))
    return Stretches(pl.DataFrame(rows, schema=STRETCHES, orient="row"), joints, ends)


def _until(trace: Trace) -> pl.DataFrame:
    """``strand``, and when its threads' last event ended; where nothing was launched, the last of any."""
    end = (pl.col("start_ns") + pl.col("duration_ns")).max()
    if trace.device_events.is_empty():
        return strands(trace).select("strand").join(trace.host_events.select(end), how="cross")
    by_lane = trace.host_events.group_by("lane").agg(end)
    by_strand = by_lane.join(strands(trace), on="lane").group_by("strand")
    return by_strand.agg(pl.col("start_ns").max()).sort("strand")


def _within(within: Spans, until: int) -> Spans:
    """Without steps a strand ends with its last event, not with the recording."""
    if within.steps:
        return within
    return replace(within, bounds=tuple((start, max(start, min(end, until))) for start, end in within.bounds))


def _of_strand(
    calls: list[_Call], within: Spans, number: int, joints: list[Passed]
) -> list[tuple[int, int, int]]:
    """(passed, start, end) of a strand's stretches, of which the first is ``number``; adds their joints."""
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
            joints.append(Passed(number + len(found) - 1, passed, call.call, targets, max(0, tail)))
        found.append((passed, start, max(start, end)))
        joints.append(Passed(number + len(found) - 1, max(passed, end)))
    return found
