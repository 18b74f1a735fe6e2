"""How evenly the steps ran, which did not, and what those did that the others did not."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import steps
from kinetoscope.analysis.time.phases import leading_of, phases
from kinetoscope.analysis.time.rows import StepDifference, StepOutlierRow
from kinetoscope.analysis.time.window import periods
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import NORMAL
from kinetoscope.trace.model import Trace

# A step is an outlier when it is further from the median than all but the odd one of a normal distribution is
# (Iglewicz and Hoaglin's 3.5 scaled median absolute deviations), and by as much as anybody would act upon.
DEVIATIONS = 3.5
WORTHWHILE = 0.1
ENOUGH_STEPS = 3  # of two steps neither is the exception
DIFFERENCES = 5  # what differed is explained by the few largest differences


@remembered
def step_distribution(run: LoadedRun) -> pl.DataFrame:
    """One row per rank, of the phase that takes most time: the columns of ``StepTimesRow``, in ns."""
    duration = pl.col("duration_ns")
    return (
        steps(run)
        .join(pl.concat(map(leading_of, run.traces)), on=["rank", "step"], how="semi", maintain_order="left")
        .group_by("rank", maintain_order=True)
        .agg(
            pl.len().alias("steps"),
            duration_median_ns=duration.median(),
            duration_min_ns=duration.min(),
            duration_max_ns=duration.max(),
            duration_p10_ns=duration.quantile(0.1, "linear"),
            duration_p90_ns=duration.quantile(0.9, "linear"),
            busy_median_ns=pl.col("busy_ns").median(),
        )
    )


@remembered
def step_outliers(run: LoadedRun) -> tuple[StepOutlierRow, ...]:
    """The steps that took much longer than the others of their phase, with what took the extra time."""
    table = steps(run).join(phases(run), on=["rank", "step"], maintain_order="left")
    like = ["rank", "phase"]
    median = pl.col("duration_ns").median().over(like)
    away = pl.col("duration_ns") - median
    deviation = (away.abs().median().over(like) * NORMAL).alias("deviation")
    slow = table.with_columns(median.alias("median_ns"), deviation, steps=pl.len().over(like)).filter(
        pl.col("steps") >= ENOUGH_STEPS,
        away > DEVIATIONS * deviation,
        median > 0,  # steps without device time are no measure of others
        away > WORTHWHILE * median,
    )
    traces = {trace.rank: trace for trace in run.traces}
    return tuple(
        StepOutlierRow(
            rank=row["rank"],
            name=row["name"],
            duration_us=row["duration_ns"] / 1000,
            median_us=round(row["median_ns"]) / 1000,
            differences=_differences(run, traces[row["rank"]], row["step"]),
        )
        for row in slow.iter_rows(named=True)
    )


def _differences(run: LoadedRun, trace: Trace, step: int) -> list[StepDifference]:
    """Kernels, ops and idle time that took longer in one step than in the median of the others."""
    parts = _parts(run)[trace.rank]
    kinds = phases(run).filter(pl.col("rank") == trace.rank)
    kind = kinds.filter(pl.col("step") == step)["phase"].item()
    others = kinds.filter(pl.col("phase") == kind, pl.col("step") != step)["step"]
    grid = parts.select("kind", "name").unique().join(others.to_frame("step"), how="cross")
    usual = (
        grid.join(parts, on=["kind", "name", "step"], how="left")
        .with_columns(pl.col("ns").fill_null(0))
        .group_by("kind", "name")
        .agg(usual_ns=pl.col("ns").median())
    )
    extra = (
        parts.filter(pl.col("step") == step)
        .join(usual, on=["kind", "name"])
        .with_columns(extra_ns=(pl.col("ns") - pl.col("usual_ns")).round().cast(pl.Int64))
        .filter(pl.col("extra_ns") > 0)
        .sort("extra_ns", "name", descending=[True, False])
        .head(DIFFERENCES)
    )
    return [
        StepDifference(kind=kind, name=name, extra_us=ns / 1000, count=count)
        for kind, name, ns, count in extra.select("kind", "name", "extra_ns", "count").iter_rows()
    ]


@remembered
def _parts(run: LoadedRun) -> dict[int, pl.DataFrame]:
    """Kernels, ops and idle time of each step, by rank: ``kind``, ``name``, ``step``, ``ns``, ``count``."""
    return {t.rank: pl.concat([_kernels(t), _ops(t), _idle(run, t)]) for t in run.traces}


def _kernels(trace: Trace) -> pl.DataFrame:
    rows = trace.device_events.drop_nulls("step").group_by("step", "name")
    return _part("kernel", rows.agg(ns=pl.col("duration_ns").sum(), count=pl.len()))


def _ops(trace: Trace) -> pl.DataFrame:
    """Host time of their own of the host events, by the step that they start in."""
    events = trace.host_events.select("id", "name", "start_ns", "self_ns")
    inside = intervals.beginning_in(events, trace.steps.select("start_ns", END, step="id"))
    rows = inside.filter(~pl.col("id").is_in(trace.steps["host_event"].implode())).group_by("step", "name")
    return _part("op", rows.agg(ns=pl.col("self_ns").sum(), count=pl.len()))


def _idle(run: LoadedRun, trace: Trace) -> pl.DataFrame:
    pieces = gaps(run).filter(pl.col("rank") == trace.rank)
    found = [
        intervals.clip(pieces, start, end)
        .group_by(pl.col("cause").cast(pl.String).alias("name"))
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), count=pl.len())
        .with_columns(step=pl.lit(step, pl.UInt32))
        for step, start, end in periods(trace).select("step", "start_ns", "end_ns").iter_rows()
    ]
    return _part("idle", pl.concat(found))


def _part(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.lit(kind).alias("kind"),
        pl.col("name").cast(pl.String),
        "step",
        pl.col("ns").cast(pl.Int64),
        pl.col("count").cast(pl.Int64),
    )
