"""Device memory while it was recorded: what the allocator held, its peaks, its calls into the driver."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import ALLOCATION
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

CPU = 0  # as c10::DeviceType numbers it

TIMELINE = {
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "lane": pl.UInt32,
    "address": pl.UInt64,
    "bytes": pl.Int64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}
CALLED = {
    "rank": pl.Int32,
    "name": pl.Categorical,
    "calls": pl.UInt32,
    "host_ns": pl.Int64,
    "calls_in_window": pl.UInt32,
    "host_ns_in_window": pl.Int64,
}


@remembered
def memory_timeline(trace: Trace) -> pl.DataFrame:
    """Every allocation and release on a device, in order of time; empty without ``profile_memory``.

    Returns:
        ``device``, ``start_ns``, ``lane``, ``address``, ``bytes`` (negative when released), ``allocated`` and
        ``reserved`` (bytes after it: in tensors, and taken from the driver). PyTorch before 1.11 recorded no
        totals: then ``allocated`` is the sum since the recording began, and ``reserved`` null.
    """
    since = pl.col("bytes").cum_sum().over("device")
    return (
        trace.memory.filter(pl.col("device_type") != CPU)
        .sort("device", "start_ns", maintain_order=True)
        .select(
            "device",
            "start_ns",
            "lane",
            "address",
            "bytes",
            pl.coalesce("total_allocated", since).alias("allocated"),
            pl.col("total_reserved").alias("reserved"),
        )
    )


def memory_over_time(trace: Trace, points: int = 200) -> pl.DataFrame:
    """The most that each device held, in ``points`` equal intervals from first to last allocation.

    Returns:
        ``device``, ``start_ns`` (of the interval), ``allocated`` and ``reserved`` (bytes); intervals in which
        nothing changed are left out: what the last one before held still holds.
    """
    table = memory_timeline(trace)
    if table.is_empty():
        return table.select("device", "start_ns", "allocated", "reserved")
    first, last = pl.col("start_ns").min(), pl.col("start_ns").max()
    width = pl.max_horizontal((last - first) // points + 1, 1)
    interval = (pl.col("start_ns") - first) // width * width + first
    return (
        table.with_columns(interval.alias("start_ns"))
        .group_by("device", "start_ns")
        .agg(pl.col("allocated").max(), pl.col("reserved").max())
        .sort("device", "start_ns")
    )


@remembered
def memory_statistics(run: Run) -> pl.DataFrame:
    """One row per rank and device whose memory was recorded.

    Returns:
        ``peak_allocated`` and ``peak_reserved`` (bytes), ``peak_ns`` (when the first was reached) and
        ``peak_op`` (the innermost op running then), ``first_allocated`` and ``last_allocated`` (a difference
        that grows with the steps is a leak), ``allocations``, ``releases``, ``allocated_bytes`` (sum of all
        allocations: how much the allocator turned over) and ``reserved_growths`` (how often it took more from
            the driver).
    """
    table = pl.concat(
        [pl.DataFrame(schema={"rank": pl.Int32, **TIMELINE})]
        + [memory_timeline(t).select(pl.lit(t.rank, pl.Int32).alias("rank"), *TIMELINE) for t in run.traces]
    )
    at_peak = pl.col("allocated").arg_max()
    table = table.group_by("rank", "device", maintain_order=True).agg(
        pl.col("allocated").max().alias("peak_allocated"),
        pl.col("reserved").max().alias("peak_reserved"),
        pl.col("start_ns").get(at_peak).alias("peak_ns"),
        pl.col("lane").get(at_peak),
        pl.col("allocated").first().alias("first_allocated"),
        pl.col("allocated").last().alias("last_allocated"),
        (pl.col("bytes") > 0).sum().alias("allocations"),
        (pl.col("bytes") < 0).sum().alias("releases"),
        pl.col("bytes").filter(pl.col("bytes") > 0).sum().alias("allocated_bytes"),
        (pl.col("reserved").diff() > 0).sum().alias("reserved_growths"),
    )
    traces = {trace.rank: trace for trace in run.traces}
    ops = [
        _op_at(traces[rank], lane, at)
        for rank, lane, at in table.select("rank", "lane", "peak_ns").iter_rows()
    ]
    return table.drop("lane").with_columns(pl.Series("peak_op", ops, pl.String))


def _op_at(trace: Trace, lane: int, at: int) -> str | None:
    """The name of the innermost op that runs on a thread at an instant."""
    host = trace.host_events
    running = host.filter(
        pl.col("lane") == lane,
        pl.col("start_ns") <= at,
        pl.col("start_ns") + pl.col("duration_ns") > at,
        pl.col("category").cast(pl.String) == "cpu_op",
    )
    return None if running.is_empty() else running.sort("depth")["name"].cast(pl.String)[-1]


@remembered
def allocator_calls(run: Run) -> pl.DataFrame:
    """The driver's allocation calls by rank and name (cudaMalloc, hipFree, …), most host time first.

    Each stops the host, and a release stops the device as well: a program in steady state makes none.

    Returns:
        ``rank``, ``name``, ``calls``, ``host_ns``, ``calls_in_window``, ``host_ns_in_window``.
    """
    found = [pl.DataFrame(schema=CALLED)]
    for trace in run.traces:
        within, host = window(trace), trace.host_events
        inside = pl.col("start_ns").is_between(within.start_ns, within.end_ns)
        found.append(
            host.filter(matching(host, "name", ALLOCATION))
            .group_by("name")
            .agg(
                pl.lit(trace.rank, pl.Int32).alias("rank"),
                pl.len().alias("calls"),
                pl.col("duration_ns").sum().alias("host_ns"),
                inside.sum().alias("calls_in_window"),
                pl.col("duration_ns").filter(inside).sum().alias("host_ns_in_window"),
            )
            .select(typed(CALLED))
        )
    return pl.concat(found).sort("host_ns", descending=True)
