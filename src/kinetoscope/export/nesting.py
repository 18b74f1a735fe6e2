"""Events of one lane on as many lanes as they need to nest: viewers drop a slice that overlaps another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.trace.model import Trace

HOST, DEVICE, ANNOTATION = "host", "device", "annotation"


def nested(trace: Trace) -> pl.DataFrame:
    """Every event that lasts, on a lane where each two events are disjoint or one inside the other; none of
    what a graph's capture recorded, which happened at another time.

    ``extra`` is 0 on the ``lane`` itself, 1, 2, … on further lanes, for what overlaps there; ``of`` is host,
    device or annotation, ``row`` that of its table. Ordered by lane, extra, start, longest first, as nesting
    viewers want it.
    """
    tables = {
        HOST: trace.host_events,
        DEVICE: trace.device_events,
        ANNOTATION: trace.device_annotations,
    }
    events = pl.concat(
        table.select("lane", "start_ns", "duration_ns", "name")
        .with_columns(of=pl.lit(of))
        .with_row_index("row")
        for of, table in tables.items()
    )
    captured = matching(trace.host_events, "category", "^captured_").arg_true()
    events = events.filter(~((pl.col("of") == HOST) & pl.col("row").is_in(captured.implode()))).sort(
        ["lane", "start_ns", "duration_ns"], descending=[False, False, True], maintain_order=True
    )
    return events.with_columns(pl.Series("extra", _extra_lanes(events), pl.UInt32)).sort(
        "lane", "extra", maintain_order=True
    )


class NestedLane(NamedTuple):
    """A lane of nested events, with the names of its process or device (None: of a process) and its own."""

    lane: int
    extra: int
    device: int | None
    process: str
    thread: str


def named(trace: Trace, events: pl.DataFrame, *, several: bool) -> Iterator[NestedLane]:
    """The lanes that ``events`` have (``lane``, ``extra``), in order; of ``several`` ranks with the rank."""
    prefix = f"rank {trace.rank} · " if several else ""
    devices = dict(trace.device_events.select("lane", "device").unique("lane").iter_rows())
    lanes = trace.lanes.rows_by_key("id", named=True, unique=True)
    for lane, extra in events.select("lane", "extra").unique(maintain_order=True).iter_rows():
        row, device = lanes.get(lane, {}), devices.get(lane)
        process = row.get("process_name") or f"process {row.get('pid')}"
        thread = (
            row.get("thread_name") or f"{'stream' if row.get('is_device') else 'thread'} {row.get('tid')}"
        )
        yield NestedLane(
            lane,
            extra,
            device,
            prefix + (process if device is None else f"GPU {device}"),
            f"{thread} (overlapping {extra})" if extra else thread,
        )


def changes(
    events: pl.DataFrame, *columns: str
) -> Iterator[tuple[tuple[int, int], int, tuple[Any, ...] | None]]:
    """Beginnings and ends of ``nested`` events, each lane from left to right: the lane (``lane``, ``extra``),
    when, and these columns of what begins; None of what ends, the last to begin first."""
    place, ends = (-1, 0), list[int]()
    wanted = events.select("lane", "extra", "start_ns", "duration_ns", *columns)
    for lane, extra, start, duration, *row in wanted.iter_rows():
        if (lane, extra) != place:
            yield from ((place, at, None) for at in reversed(ends))
            place, ends = (lane, extra), []
        while ends and ends[-1] <= start:
            yield place, ends.pop(), None
        yield place, start, tuple(row)
        ends.append(start + duration)
    yield from ((place, at, None) for at in reversed(ends))


def _extra_lanes(events: pl.DataFrame) -> list[int]:
    """For each event of a sorted table, the first lane on which it is inside of what is still open there."""
    chosen: list[int] = []
    current: int | None = None
    stacks: list[list[int]] = []  # per extra lane, the ends of its open events
    columns = events.select("lane", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
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
