"""The calls that put work on a device: what they cost the host, and how far ahead of the device they run."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time.intervals import apart, within
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed, whole

LAUNCHES = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "launch": pl.UInt32,
    "lane": pl.UInt32,
    "start_ns": pl.Int64,
    "host_ns": pl.Int64,
    "works": pl.UInt32,
    "first_start_ns": pl.Int64,
    "last_end_ns": pl.Int64,
    "device_ns": pl.Int64,
    "latency_ns": pl.Int64,
    "depth": pl.UInt32,
    "step": pl.UInt32,
}


@remembered
def launches(trace: Trace) -> pl.DataFrame:
    """One row per launch call that device work answers, in order of time: ``rank``, ``device``, ``launch``
    (row of ``host_events``), ``lane``, ``start_ns``, ``host_ns`` (the call's duration), ``works`` (device
    events it put there), ``first_start_ns``, ``last_end_ns`` and ``device_ns`` (sum of durations) of that
    work, ``latency_ns`` (from the call's start to the first work's), ``depth`` (launches of this device, this
    one included, whose work had not ended: how far ahead the host is) and ``step``."""
    host = trace.host_events
    answered = (
        trace.device_events.select("launch", "device", "start_ns", "duration_ns", "step")
        .drop_nulls("launch")
        .group_by("launch", maintain_order=True)
        .agg(
            pl.col("device").first(),
            pl.len().alias("works"),
            pl.col("start_ns").min().alias("first_start_ns"),
            END.max().alias("last_end_ns"),
            pl.col("duration_ns").sum().alias("device_ns"),
            pl.col("step").first(),
        )
    )
    table = answered.with_columns(
        rank=pl.lit(trace.rank, pl.Int32),
        lane=host["lane"][answered["launch"]],
        start_ns=host["start_ns"][answered["launch"]],
        host_ns=host["duration_ns"][answered["launch"]],
    ).sort("start_ns")
    table = table.with_columns(latency_ns=pl.col("first_start_ns") - pl.col("start_ns"))
    keys = apart(table, ["device"])
    over = within(pl.int_range(pl.len(), dtype=pl.UInt32), keys)
    ended = table.select("device", start_ns="last_end_ns").sort("start_ns")
    ended = ended.with_columns(ended=over + 1)
    table = table.with_columns(made=over).join_asof(
        ended, on="start_ns", by=keys or None, check_sortedness=False
    )
    depth = (pl.col("made") + 1 - pl.col("ended").fill_null(0)).cast(pl.UInt32)
    return table.with_columns(depth=depth).select(typed(LAUNCHES))


@remembered
def launching_lanes(trace: Trace) -> pl.Series:
    """The threads (``lane``) whose launches device work answers, in order."""
    return _lanes(trace).to_series()


@kept
def _lanes(trace: Trace) -> pl.DataFrame:
    return launches(trace)["lane"].unique().sort().to_frame()


@remembered
def arrival_ns(trace: Trace) -> int:
    """The time that a launch takes to arrive at an idle device, ns; 0 without a launch.

    It is nearly the least of all launches' latencies: where launches to an idle device were recorded, the 1st
    percentile of all agrees with the quick ones of those to 2 µs. Where every launch had to queue it is an
    upper bound.
    """
    return whole(_arrival(trace)["latency_ns"][0])


@kept
def _arrival(trace: Trace) -> pl.DataFrame:
    latency = pl.col("latency_ns")
    return launches(trace).select(latency.filter(latency > 0).quantile(0.01, "lower"))


@kept
def launch_statistics(run: LoadedRun) -> pl.DataFrame:
    """One row per rank and device: the columns of ``LaunchRow`` but ``queue``, in ns."""
    table = pl.concat([pl.DataFrame(schema=LAUNCHES), *map(launches, run.traces)]).with_columns(
        apart_ns=(pl.col("start_ns") - pl.col("start_ns").shift(1)).over("rank", "lane")
    )
    steps = {trace.rank: len(trace.steps) or None for trace in run.traces}
    return (
        table.group_by("rank", "device")
        .agg(
            pl.len().alias("launches"),
            pl.col("step").is_not_null().sum().alias("launches_per_step"),
            pl.col("works").mean().alias("work_per_launch"),
            host_median_ns=pl.col("host_ns").median(),
            latency_median_ns=pl.col("latency_ns").median(),
            latency_p10_ns=pl.col("latency_ns").quantile(0.1, "linear"),
            latency_p90_ns=pl.col("latency_ns").quantile(0.9, "linear"),
            depth_median=pl.col("depth").median(),
            depth_max=pl.col("depth").max(),
            on_idle_device=(pl.col("depth") == 1).sum(),
            shorter_than_call=(pl.col("host_ns") > pl.col("device_ns")).sum(),
            host_ns_per_launch=pl.col("apart_ns").median(),
        )
        .with_columns(
            pl.col("launches_per_step")
            / pl.col("rank").replace_strict(steps, return_dtype=pl.Int64, default=None)
        )
        .sort("rank", "device")
    )


def queue_depth(trace: Trace, points: int = 200) -> pl.DataFrame:
    """The depth of each device's queue over the window, in ``points`` equal intervals: ``device``,
    ``start_ns`` (of the interval), ``launches`` made in it and the largest depth at them, ``depth_max``;
    intervals without a launch are left out."""
    within = window(trace)
    width = max(within.length_ns // points, 1)
    inside = launches(trace).filter(pl.col("start_ns").is_between(within.start_ns, within.end_ns, "left"))
    interval = (pl.col("start_ns") - within.start_ns) // width * width + within.start_ns
    return (
        inside.group_by("device", interval.alias("start_ns"))
        .agg(launches=pl.len(), depth_max=pl.col("depth").max())
        .sort("device", "start_ns")
    )
