"""Events of one lane on as many lanes as they need to nest: viewers drop a slice that overlaps another."""

from __future__ import annotations

import polars as pl

from kinetoscope.trace.model import Trace

HOST, DEVICE, ANNOTATION = "host", "device", "annotation"


def nested(trace: Trace) -> pl.DataFrame:
    """Every event that lasts, on a lane where each two events are disjoint or one inside the other.

    Returns:
        ``lane`` and ``extra`` (0: the lane itself; 1, 2, …: further lanes, for what overlaps there),
        ``start_ns``, ``duration_ns``, ``name``, ``of`` (host, device or annotation) and ``row`` of its table;
        ordered by lane, extra, start, longest first, as nesting viewers want it.
    """
    tables = {
        HOST: trace.host_events,
        DEVICE: trace.device_events,
        ANNOTATION: trace.device_annotations,
    }
    events = pl.concat(
        table.select("lane", "start_ns", "duration_ns", "name")
        .with_columns(pl.lit(of).alias("of"))
        .with_row_index("row")
        for of, table in tables.items()
    ).sort(["lane", "start_ns", "duration_ns"], descending=[False, False, True], maintain_order=True)
    return events.with_columns(pl.Series("extra", _extra_lanes(events), pl.UInt32)).sort(
        "lane", "extra", maintain_order=True
    )


def _extra_lanes(events: pl.DataFrame) -> list[int]:
    """For each event of a sorted table, the first lane on which it is inside of what is still open there."""
    chosen: list[int] = []
    current: int | None = None
    stacks: list[list[int]] = []  # per extra lane, the ends of its open events
    columns = events.select("lane", "start_ns", (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"))
    for lane, start, end in columns.iter_rows():
        if lane != current:
            current, stacks = lane, []
        for extra, stack in enumerate(stacks):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                chosen.append(extra)
                break
        else:
            chosen.append(len(stacks))
            stacks.append([end])
    return chosen
