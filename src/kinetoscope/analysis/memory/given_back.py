"""What was given back to the driver while the history ran, and why: each time waits for the device."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, NamedTuple

import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.analysis.memory.stacks import stack_owners
from kinetoscope.snapshot.model import MAP, OOM, SEGMENT, SEGMENT_FREE, UNMAP

Cause = Literal["room", "empty_cache"]
EMPTY_CACHE = "empty_cache"  # the function of torch.cuda
TAKES, GIVES = (SEGMENT, MAP), (SEGMENT_FREE, UNMAP)


class GivenBack(NamedTuple):
    """Segments that were given back one after another.

    Attributes:
        cause: room: an allocation found none before they were; empty_cache: nothing needed it.
        step: of the recorded ones, from 1; 0 before the first, or where none are known.
        line: of the allocation, or of the call; empty where no stack tells it.
        again_bytes: what was taken of the driver from then until the next time, or the history's end.
    """

    cause: Cause
    step: int
    time_us: int
    segments: int
    bytes: int
    line: str
    again_bytes: int


def given_back(history: DeviceHistory, boundaries_ns: tuple[int, ...]) -> list[GivenBack]:
    """Each time that memory was given back to the driver, in order of time.

    To what it gives back for room the allocator writes the stack of the allocation that needs it, and then
    asks the driver. Of ``empty_cache`` it knows the stack where the history has those of releases; else it
    writes where each segment was allocated.
    """
    snapshot, counters = history.snapshot, history.counters
    entries = snapshot.entries.filter(pl.col("device") == history.device)
    is_given = pl.col("action").is_in(GIVES)
    runs = (
        entries.select("action", "time_us", "bytes", "stack", is_given.alias("given"))
        .with_columns(
            pl.col("given").rle_id().alias("run"),
            pl.col("action").shift(-1).alias("next_action"),
            pl.col("stack").shift(-1).alias("next_stack"),
            pl.when(pl.col("action").is_in(TAKES)).then("bytes").otherwise(0).alias("taken"),
        )
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("given").first(),
            pl.col("time_us").first(),
            pl.len().alias("segments"),
            pl.col("bytes").sum(),
            pl.col("stack").unique().sort().alias("stacks"),
            pl.col("next_action", "next_stack").last(),
            pl.col("taken").sum(),
        )
        .with_columns(pl.col("taken").shift(-1).fill_null(0).alias("again"))
        .filter("given")
    )
    lines = stack_owners(snapshot)["line"].to_list()
    marks = [ns // 1000 for ns in boundaries_ns]
    may_retry = counters is None or counters.retries + counters.failures > 0
    found: list[GivenBack] = []
    for row in runs.iter_rows(named=True):
        same = row["stacks"] == [row["next_stack"]] and row["next_action"] in (*TAKES, OOM)
        emptied = [one for one in row["stacks"] if _calls_empty_cache(history, one)]
        cause: Cause = "room" if same and may_retry and not emptied else "empty_cache"
        known = row["stacks"] if cause == "room" else emptied
        step = bisect_right(marks, row["time_us"])
        found.append(
            GivenBack(
                cause=cause,
                step=step if step < len(marks) else 0,
                time_us=row["time_us"],
                segments=row["segments"],
                bytes=row["bytes"],
                line=lines[known[0]] if known else "",
                again_bytes=row["again"],
            )
        )
    return found


def _calls_empty_cache(history: DeviceHistory, stack: int) -> bool:
    return any(frame.name == EMPTY_CACHE for frame in history.snapshot.stacks[stack])
