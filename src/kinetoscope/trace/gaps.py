"""How much time of the recording the bytes that could not be read may span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

_MEASURED = 16  # gaps whose time is looked for, the largest: thousands of single events span none
_WORTH = 1 << 10  # bytes of a gap that may hold more than an event
_BUSY = 0.05  # part of all events that a lane must have for its silence to mean something


class LostBytes(NamedTuple):
    """A run of so many bytes before the event at a position of the file."""

    event: int
    bytes: int


def spanned_ns(gaps: Sequence[LostBytes], frames: Mapping[str, pl.DataFrame]) -> int:
    """Nanoseconds of the recording whose events may lie in the gaps.

    Kineto writes one kind of event after the other, each kind in the order of time. So each busy lane is
    looked at kind by kind: a gap may hide what lies between the last event before it and the first one after,
    from the recording's beginning where none is before it, to its end where none is after. The lane that
    lost most counts.
    """
    timed = [
        frame.select("event", "lane", "start_ns", pl.lit(name).alias("kind"))
        for name, frame in frames.items()
        if {"event", "lane", "start_ns"} <= set(frame.columns)
    ]
    if not gaps or not timed:
        return 0
    events = pl.concat(timed, how="vertical_relaxed")
    events = events.filter(pl.len().over("kind", "lane") >= _BUSY * pl.len()).sort("event")
    if events.is_empty():
        return 0
    first, last = events.select(first=pl.col("start_ns").min(), last=pl.col("start_ns").max()).row(0)
    return min(last - first, sum(_hidden_ns(events, at, first, last) for at in _places(gaps, events)))


def _places(gaps: Sequence[LostBytes], events: pl.DataFrame) -> list[int]:
    """Where the largest gaps are; those without an event between them are one."""
    table = pl.DataFrame(gaps, schema={"event": pl.UInt32, "bytes": pl.Int64}, orient="row")
    follows = events["event"].search_sorted(table["event"])
    holes = table.group_by(follows.alias("follows")).agg(pl.col("event").min(), pl.col("bytes").sum())
    return holes.filter(pl.col("bytes") >= _WORTH).top_k(_MEASURED, by="bytes")["event"].to_list()


def _hidden_ns(events: pl.DataFrame, place: int, first: int, last: int) -> int:
    start, is_before = pl.col("start_ns"), pl.col("event") < place
    lanes = events.group_by("kind", "lane").agg(
        start.filter(is_before).last().fill_null(first).alias("from_ns"),
        start.filter(~is_before).first().fill_null(last).alias("to_ns"),
    )
    return max(0, lanes.select((pl.col("to_ns") - pl.col("from_ns")).max()).item())
