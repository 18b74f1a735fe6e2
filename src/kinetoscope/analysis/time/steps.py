"""Each recorded step: how long, how busy, how many launches."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_intervals
from kinetoscope.analysis.time.periods import periods
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace


@remembered
def steps(run: Run) -> pl.DataFrame:
    """One row a rank's step, in order: ``rank``, ``step`` (row of the trace's ``steps``), ``name``,
    ``start_ns`` and ``duration_ns`` by the device's clock (see ``periods``), ``host_duration_ns`` between the
    host's marks; ``busy_ns``, the union of device intervals between its start and end, added up over the
    rank's devices; ``launches``, the device events whose launch lies in it (their own start, if they have
    none), and ``device_time_ns``, the sum of their durations.

    For an end of the last step that was not recorded, the window begins earlier (see ``window``): what was
    busy there is the last step's, so that steps that follow each other sum to what the window was busy."""
    return pl.concat([steps_of(trace) for trace in run.traces])


@remembered
def steps_of(trace: Trace) -> pl.DataFrame:
    """``steps`` of one trace."""
    launched = (
        work(trace)
        .group_by("step")
        .agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("duration_ns").sum().alias("device_time_ns"))
    )
    return (
        periods(trace)
        .select(
            pl.lit(trace.rank, pl.Int32).alias("rank"),
            "step",
            "name",
            "start_ns",
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            host_duration_ns=pl.col("host_end_ns") - pl.col("host_start_ns"),
        )
        .join(launched, on="step", how="left", maintain_order="left")
        .join(_busy(trace), on="step", how="left", maintain_order="left")
        .with_columns(pl.col("launches", "device_time_ns", "busy_ns").fill_null(0))
    )


def _busy(trace: Trace) -> pl.DataFrame:
    """(step, busy_ns): what of each step every device was busy, added up."""
    busy = busy_intervals(trace)
    bounds = periods(trace).select("step", "start_ns", "end_ns")
    bounds = bounds.join(busy.select(DEVICE).unique(), how="cross")
    ahead = bounds.filter(pl.col("step") == pl.col("step").max()).with_columns(
        pl.lit(window(trace).start_ns, pl.Int64).alias("start_ns"),
        pl.lit(bounds["start_ns"].min(), pl.Int64).alias("end_ns"),
    )
    bounds = pl.concat([bounds, ahead])
    until = [
        intervals.covered_until(busy, bounds.rename({bound: "at"}), DEVICE)
        for bound in ("start_ns", "end_ns")
    ]
    return (
        bounds.with_columns((until[1] - until[0]).alias("busy_ns"))
        .group_by("step")
        .agg(pl.col("busy_ns").sum())
    )
