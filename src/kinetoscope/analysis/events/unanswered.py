"""Launch calls whose device work is not in the recording."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import CAPTURE_BEGIN, CAPTURE_END, LAUNCH
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace


@remembered
def unanswered_launches(trace: Trace) -> pl.DataFrame:
    """``host_events`` of the launches that no device event answers, with ``rank`` and ``device``; those into
    a graph that is being captured put no work on a device, and are not meant.

    A call does not say which device it was for: it is counted where its thread's last answered launch went
    (its next one, if it has no earlier), and on the recording's first device where its thread has none.
    Nothing is counted in a recording without any device event, for it has no device to count it on.
    """
    host, device = trace.host_events, trace.device_events
    # Queries, allocations, waits and host callbacks have correlation ids as well.
    is_call = matching(host, "name", LAUNCH) & host["correlation"].is_not_null()
    calls = host.select("id", "lane").filter(is_call)
    answered = device.select(pl.col("launch").alias("id"), "device").drop_nulls("id").unique("id")
    calls = calls.join(answered, on="id", how="left", maintain_order="left")
    elsewhere = device["device"].min() if len(device) else None
    guessed = pl.coalesce(
        pl.col("device").forward_fill().over("lane"),
        pl.col("device").backward_fill().over("lane"),
        pl.lit(elsewhere, pl.Int32),
    )
    unanswered = calls.select("id", guessed.alias("device")).filter(
        calls["device"].is_null() & pl.col("device").is_not_null()
    )
    found = host[unanswered["id"]].with_columns(
        unanswered["device"], pl.lit(trace.rank, pl.Int32).alias("rank")
    )
    return found.filter(~_captured(host, found))


def _captured(host: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Which calls were made while their thread captured a graph."""
    marks = (
        host.select("lane", "start_ns", begins=matching(host, "name", CAPTURE_BEGIN))
        .filter(matching(host, "name", f"{CAPTURE_BEGIN}|{CAPTURE_END}"))
        .sort("start_ns")
    )
    at = calls.select("lane", "start_ns").with_row_index("row").sort("start_ns")
    found = at.join_asof(marks, on="start_ns", by="lane", check_sortedness=False).sort("row")
    return found["begins"].fill_null(False)
