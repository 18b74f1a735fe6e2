"""How busy each device was, exactly as the report's contract defines it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.unanswered import unanswered_launches
from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace


@remembered
def busy(run: Run) -> pl.DataFrame:
    """One row a device that did any work, ordered by rank and device.

    All in integer nanoseconds, over the whole recording unless the name says window:

    - ``rank``, ``device``, ``window_start_ns``, ``window_ns``, ``window_basis`` (see ``window``);
    - ``span_ns``: first device event's start to last one's end;
    - ``busy_ns``: union of all device intervals over all streams; ``compute_ns``, ``copy_ns``,
      ``communication_ns``: the same of each part (see ``work``); parts overlap, so they may sum to more;
    - ``exposed_communication_ns``: communication while nothing computes;
    - ``busy_in_window_ns`` and ``idle_ns``: they sum to ``window_ns``;
    - ``device_time_ns``: plain sum of durations;
    - ``device_events``, ``kernels``, ``unattributed`` (device events whose launch is not in the recording)
      and ``launches_without_kernel`` (launch calls whose device work is not in the recording).
    """
    return pl.concat([busy_of(trace) for trace in run.traces]).sort(*DEVICE)


@remembered
def busy_of(trace: Trace) -> pl.DataFrame:
    """``busy`` of one trace."""
    table, span = work(trace), window(trace)
    counts = table.group_by(DEVICE).agg(
        (pl.col("end_ns").max() - pl.col("start_ns").min()).alias("span_ns"),
        pl.col("duration_ns").sum().alias("device_time_ns"),
        pl.len().cast(pl.Int64).alias("device_events"),
        (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.col("launch").is_null().sum().cast(pl.Int64).alias("unattributed"),
    )
    whole = busy_intervals(trace)
    bounds = table.select(*DEVICE, "part", "start_ns", "end_ns")
    parts = {part: _part(bounds, part) for part in ("compute", "copy", "communication")}
    lengths = {
        "busy_ns": whole,
        "busy_in_window_ns": intervals.clip(whole, span.start_ns, span.end_ns),
        **{f"{part}_ns": merged for part, merged in parts.items()},
        "exposed_communication_ns": intervals.subtract(parts["communication"], parts["compute"], DEVICE),
    }
    measures = [
        intervals.length(merged, DEVICE).rename({"length_ns": name}) for name, merged in lengths.items()
    ]
    measures.append(
        unanswered_launches(trace)
        .group_by(DEVICE)
        .agg(pl.len().cast(pl.Int64).alias("launches_without_kernel"))
    )
    for measure in measures:
        counts = counts.join(measure, on=DEVICE, how="left")
    return (
        counts.with_columns(pl.exclude(DEVICE).fill_null(0))
        .with_columns(
            pl.lit(span.start_ns, pl.Int64).alias("window_start_ns"),
            pl.lit(span.length_ns, pl.Int64).alias("window_ns"),
            pl.lit(span.basis).alias("window_basis"),
            (span.length_ns - pl.col("busy_in_window_ns")).alias("idle_ns"),
        )
        .sort(*DEVICE)
    )


@remembered
def busy_intervals(trace: Trace) -> pl.DataFrame:
    """When each device did anything: merged intervals (rank, device, start_ns, end_ns)."""
    return intervals.union(work(trace), DEVICE)


def _part(table: pl.DataFrame, part: str) -> pl.DataFrame:
    return intervals.union(table.filter(pl.col("part") == part), DEVICE)
