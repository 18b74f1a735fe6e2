"""How busy each device was, exactly as the report's contract defines it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import constant, matching
from kinetoscope.analysis.events.torch_names import CAPTURE_BEGIN, CAPTURE_END, LAUNCH
from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import periods, window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole


@kept
def unanswered_launches(trace: Trace) -> pl.DataFrame:
    """``host_events`` of the launches that no device event answers, with ``rank`` and ``device``; not of
    those into a graph that is being captured, nor in a recording without any device event. A launch is
    counted where its thread's last answered one went (its next one, if it has no earlier), else on the
    recording's first device."""
    host, device = trace.host_events, trace.device_events
    # Queries, allocations, waits and host callbacks have correlation ids as well.
    is_call = matching(host, "name", LAUNCH) & host["correlation"].is_not_null()
    answered = device.select("launch", "device").drop_nulls("launch")
    of_call = constant(None, len(host), pl.Int32).scatter(answered["launch"], answered["device"])
    calls = host.select("id", "lane", device=of_call).filter(is_call)
    if not calls["device"].null_count():
        return host.clear().with_columns(calls["device"].clear(), rank=pl.lit(trace.rank, pl.Int32))
    elsewhere = device["device"].min() if len(device) else None
    guessed = pl.coalesce(
        pl.col("device").forward_fill().over("lane"),
        pl.col("device").backward_fill().over("lane"),
        pl.lit(elsewhere, pl.Int32),
    )
    unanswered = calls.select("id", device=guessed).filter(
        calls["device"].is_null() & pl.col("device").is_not_null()
    )
    found = host[unanswered["id"]].with_columns(unanswered["device"], rank=pl.lit(trace.rank, pl.Int32))
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


@remembered
def busy(run: LoadedRun) -> pl.DataFrame:
    """One row per device that did any work, ordered by rank and device: ``DeviceRow`` in integer ns, without
    its name and fractions, with ``window_start_ns`` and ``busy_in_window_ns``, which is the window less
    ``idle_ns``."""
    return pl.concat([busy_of(trace) for trace in run.traces]).sort(*DEVICE)


@kept
def busy_of(trace: Trace) -> pl.DataFrame:
    table, span = work(trace), window(trace)
    counts = table.group_by(DEVICE).agg(
        span_ns=pl.col("end_ns").max() - pl.col("start_ns").min(),
        device_time_ns=pl.col("duration_ns").sum(),
        device_events=pl.len().cast(pl.Int64),
        kernel_launches=(pl.col("kind") == "kernel").sum().cast(pl.Int64),
        unattributed_kernels=pl.col("launch").is_null().sum().cast(pl.Int64),
    )
    whole = busy_intervals(trace)
    bounds = table.select(*DEVICE, "part", "start_ns", "end_ns")
    parts = {
        part: intervals.union(bounds.filter(part=part), DEVICE)
        for part in ("compute", "copy", "communication")
    }
    lengths = {
        "busy_ns": whole,
        "busy_in_window_ns": intervals.clip(whole, span.start_ns, span.end_ns),
        **{f"{part}_ns": merged for part, merged in parts.items()},
        "exposed_communication_ns": intervals.subtract(parts["communication"], parts["compute"], DEVICE),
    }
    measures = [
        counts,
        *(intervals.length(merged, DEVICE).rename({"length_ns": name}) for name, merged in lengths.items()),
        unanswered_launches(trace).group_by(DEVICE).agg(launches_without_kernel=pl.len().cast(pl.Int64)),
    ]
    sums = pl.concat(measures, how="diagonal").group_by(DEVICE).sum()
    return (
        counts.select(DEVICE)
        .join(sums, on=DEVICE, how="left")
        .with_columns(
            window_start_ns=pl.lit(span.start_ns, pl.Int64),
            window_ns=pl.lit(span.length_ns, pl.Int64),
            window_basis=pl.lit(span.basis),
            idle_ns=span.length_ns - pl.col("busy_in_window_ns"),
        )
        .sort(*DEVICE)
    )


@remembered
def busy_intervals(trace: Trace) -> pl.DataFrame:
    """When each device did anything: merged intervals (rank, device, start_ns, end_ns)."""
    return intervals.union(work(trace), DEVICE)


@remembered
def steps(run: LoadedRun) -> pl.DataFrame:
    """One row per rank's step, in order: ``StepRow`` in ns, and ``step``, its row in ``trace.steps``."""
    return pl.concat([steps_of(trace) for trace in run.traces])


@kept
def steps_of(trace: Trace) -> pl.DataFrame:
    launched = (
        work(trace)
        .group_by("step")
        .agg(launches=pl.len().cast(pl.Int64), device_time_ns=pl.col("duration_ns").sum())
    )
    table = periods(trace)
    # The end of the last step that was not recorded: it was before the first one.
    before = pl.DataFrame({"start_ns": [window(trace).start_ns], "end_ns": [whole(table["start_ns"].min())]})
    busy_ns = busy_within(trace, pl.concat([table.select("start_ns", "end_ns"), before]))
    is_last = table.select((pl.col("step") == pl.col("step").max()).cast(pl.Int64)).to_series()
    return (
        table.select(
            pl.lit(trace.rank, pl.Int32).alias("rank"),
            "step",
            "name",
            "start_ns",
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            host_duration_ns=pl.col("host_end_ns") - pl.col("host_start_ns"),
        )
        .join(launched, on="step", how="left", maintain_order="left")
        .with_columns(
            pl.col("launches", "device_time_ns").fill_null(0),
            busy_ns=busy_ns.head(len(table)) + is_last * busy_ns[-1],
        )
    )


def busy_within(trace: Trace, bounds: pl.DataFrame) -> pl.Series:
    """Time in each row (``start_ns`` to ``end_ns``) in which devices were busy, added up, ns."""
    devices = busy_intervals(trace).partition_by(DEVICE)
    each = (intervals.covered(device, bounds).clip(0) for device in devices)
    return sum(each, constant(0, len(bounds), pl.Int64)).alias("busy_ns")
