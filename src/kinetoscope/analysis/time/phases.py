"""The kind of each recorded step, so that different things are never averaged.

A step is a request, an evaluation, a step of training or a forward pass, by what it is marked with and by
what ran in it; a serving engine's is prefill, decode or both, as the engine says. Steps of one of the others
that took very different times or ran other kernels are taken apart, and get letters, the one with most time
first. A request's own parts (encode, prefill, decode) are marked in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import get_args

import polars as pl

from kinetoscope.analysis.events.rows import END, matching, rows
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, DATA_LOADER
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_within, steps_of
from kinetoscope.analysis.time.window import periods
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.engines import Phase, engine_step
from kinetoscope.trace.model import Trace

TRAIN, FORWARD, EVALUATE, REQUEST = "train", "forward", "evaluate", "request"
STEP = "step"  # where the recording holds the device's work alone, nothing says what it was for
ENGINE_PHASES = get_args(Phase)  # what serving engines say of their steps
PARTS = "^(encode|prefill|decode)$"
EVALUATION = "^evaluate$"
# Gradients are set to zero wherever a program likes.
BACKWARD = rf"{AUTOGRAD_NODE}|^Optimizer\.step#"

# Steps are unlike when one takes so many times as long, or when they share less than this of their launches.
TIMES_AS_LONG = 3.0
SIMILAR = 0.5
ENOUGH = 2  # one step with the others' kernels that took long is their outlier
TOP = 5

Launches = Mapping[str, int]


@remembered
def phases(run: LoadedRun) -> pl.DataFrame:
    """``rank``, ``step`` and ``phase`` of every step."""
    return pl.concat([phases_of(trace) for trace in run.traces])


@kept
def phases_of(trace: Trace) -> pl.DataFrame:
    table = steps_of(trace).select("rank", "step", "start_ns", "duration_ns")
    # Workers deliver in rounds: one step waits for all of them and the next for none, and both are the same.
    calls = trace.host_events.select("start_ns", END)[rows(trace.host_events, "name", DATA_LOADER)]
    waited_ns = intervals.covered(intervals.union(calls), table.select("start_ns", END))
    table = table.with_columns(pl.col("duration_ns") - waited_ns)
    launches, kinds = _launches(trace), _kinds(trace)
    named: dict[int, str] = {}
    for kind in dict.fromkeys(kinds.values()):
        lengths = {
            step: length
            for step, length in table.select("step", "duration_ns").iter_rows()
            if kinds[step] == kind
        }
        groups = [list(lengths)] if kind in ENGINE_PHASES else _groups(lengths, launches)
        for number, group in enumerate(groups):
            letter = chr(ord("A") + number) if number < 26 else number + 1
            named |= dict.fromkeys(group, kind if len(groups) == 1 else f"{kind} {letter}")
    phase = pl.Series("phase", [named[step] for step in table["step"]], pl.String)
    return table.select("rank", "step", phase)


@remembered
def leading_of(trace: Trace) -> pl.DataFrame:
    """The steps (``rank``, ``step``, ``duration_ns``) of a rank's phase that takes most time; never
    evaluation inside training, without which the program's own steps are timed."""
    table = steps_of(trace).join(phases_of(trace), on=["rank", "step"], maintain_order="left")
    most = (
        table.group_by("phase", maintain_order=True)
        .agg(pl.col("duration_ns").sum())
        .with_columns(evaluates=pl.col("phase").str.starts_with(EVALUATE))
        .sort("evaluates", "duration_ns", descending=[False, True], maintain_order=True)
        .head(1)
    )
    return table.join(most, on="phase", how="semi", maintain_order="left").select(
        "rank", "step", "duration_ns"
    )


@remembered
def phase_rows(run: LoadedRun) -> pl.DataFrame:
    """One row per phase and rank, most time first, then the parts of requests: ``PhaseRow``, in ns."""
    each = ((trace, whole) for trace in run.traces for whole in (True, False))
    return pl.concat([_rows(trace, whole) for trace, whole in each if whole or len(_marked(trace))])


def _rows(trace: Trace, whole: bool) -> pl.DataFrame:
    if whole:
        table = steps_of(trace).join(phases_of(trace), on=["rank", "step"], maintain_order="left")
        table, of, key = table.with_columns(per="step"), "step", "step"
    else:
        table, of, key = parts(trace).with_columns(per="step"), "request", "part"
    per = pl.len() / pl.col("per").n_unique()
    rows = table.group_by("rank", "phase", maintain_order=True).agg(
        pl.lit(of).alias("of"),
        pl.len().cast(pl.Int64).alias("count"),
        per.cast(pl.Float64).alias("per_step"),
        pl.col("duration_ns").median().cast(pl.Float64).alias("median_ns"),
        pl.col("duration_ns").quantile(0.1, "linear").alias("p10_ns"),
        pl.col("duration_ns").quantile(0.9, "linear").alias("p90_ns"),
        pl.col("duration_ns").sum().alias("total_ns"),
        pl.col("busy_ns", "launches", "device_time_ns").median().cast(pl.Float64),
    )
    if whole:
        rows = rows.sort("total_ns", descending=True, maintain_order=True)
    kernels = _top(trace, table.select(key, "phase"), key)
    return rows.join(kernels, on="phase", how="left", maintain_order="left").with_columns(
        pl.col("kernels").fill_null([])
    )


def _top(trace: Trace, phase_of: pl.DataFrame, key: str) -> pl.DataFrame:
    """(phase, kernels): those with most device time."""
    launched = work(trace) if key == "step" else _in_parts(trace)
    return (
        launched.select(key, "name", "duration_ns")
        .join(phase_of, on=key)
        .group_by("phase", "name")
        .agg(device_time_ns=pl.col("duration_ns").sum(), launches=pl.len().cast(pl.Int64))
        .with_columns(pl.col("name").cast(pl.String))
        .sort(["device_time_ns", "name"], descending=[True, False])
        .group_by("phase", maintain_order=True)
        .agg(kernels=pl.struct("name", "device_time_ns", "launches").head(TOP))
    )


# The parts of requests


@remembered
def parts(trace: Trace) -> pl.DataFrame:
    """One row per marked part of a request, in order, by the device's clock: ``rank``, ``part`` (its number),
    ``step``, ``phase`` (``encode``, ``prefill``, ``decode``), ``start_ns``, ``duration_ns``, ``busy_ns``,
    ``launches``, ``device_time_ns``. From its first work to the next part's, the last to the end of its own;
    a part without device work has the host's times."""
    reach = (
        _in_parts(trace)
        .group_by("part")
        .agg(
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.col("end_ns").max(),
            launches=pl.len().cast(pl.Int64),
            device_time_ns=pl.col("duration_ns").sum(),
        )
    )
    following = pl.col("start_ns").shift(-1).over("step")
    table = (
        _marked(trace)
        .join(reach, on="part", how="left", maintain_order="left")
        .with_columns(start_ns=pl.coalesce("first_ns", "start_ns"), end_ns=pl.coalesce("last_ns", "end_ns"))
        .with_columns(end_ns=pl.coalesce(following, "end_ns"))
        .with_columns(
            pl.lit(trace.rank, pl.Int32).alias("rank"),
            (pl.col("end_ns") - pl.col("start_ns")).clip(0).alias("duration_ns"),
            pl.col("launches", "device_time_ns").fill_null(0),
        )
    )
    return table.with_columns(busy_within(trace, table)).select(
        "rank", "part", "step", "phase", "start_ns", "duration_ns", "busy_ns", "launches", "device_time_ns"
    )


@remembered
def _marked(trace: Trace) -> pl.DataFrame:
    """(part, step, phase, start_ns, end_ns) by the host's clock, in order."""
    marked = _inside(trace, matching(trace.host_events, "name", PARTS))
    return (
        marked.sort("start_ns")
        .with_row_index("part")
        .select("part", "step", pl.col("name").cast(pl.String).alias("phase"), "start_ns", END)
    )


@remembered
def _in_parts(trace: Trace) -> pl.DataFrame:
    """Device work that was launched within a part, with the number of the ``part``."""
    columns = pl.col("name", "end_ns", "duration_ns", "launch")
    table = work(trace).select(columns, worked_ns="start_ns").drop_nulls("launch")
    table = table.with_columns(start_ns=trace.host_events["start_ns"][table["launch"]]).drop("launch")
    found = intervals.beginning_in(table, _marked(trace).select("part", "start_ns", "end_ns"))
    return found.with_columns(start_ns="worked_ns")


@remembered
def phase_of_work(trace: Trace) -> pl.Series:
    """The part of a request that each device event was launched in, or the phase of its step, or null."""
    return _phase_of_work(trace).to_series()


@kept
def _phase_of_work(trace: Trace) -> pl.DataFrame:
    events = trace.device_events
    launched = trace.host_events["start_ns"][events["launch"]]
    bounds = _marked(trace).select(part="phase", begin_ns="start_ns", left_ns="end_ns")
    of_step = events.select("step").join(
        phases_of(trace).select("step", "phase"), on="step", how="left", maintain_order="left"
    )
    if bounds.is_empty():
        return of_step.select(pl.col("phase").cast(pl.Categorical))
    within = (
        of_step.with_columns(at=launched)
        .with_row_index("row")
        .sort("at")
        .join_asof(bounds, left_on="at", right_on="begin_ns", check_sortedness=False)
        .sort("row")
    )
    part = pl.when(pl.col("at") < pl.col("left_ns")).then("part")
    return within.select(phase=pl.coalesce(part, "phase").cast(pl.Categorical))


# What a step is


def _kinds(trace: Trace) -> dict[int, str]:
    events = trace.host_events
    marked = {
        kind: set(_inside(trace, matching(events, "name", pattern))["step"])
        for kind, pattern in ((TRAIN, BACKWARD), (EVALUATE, EVALUATION), (REQUEST, PARTS))
    }
    rest = FORWARD if matching(events, "category", "^cpu_op$").any() else STEP
    engine = {
        step: said.phase
        for step, name in periods(trace).select("step", "name").iter_rows()
        if (said := engine_step(name)) is not None
    }
    return {
        step: engine.get(step) or next((kind for kind, found in marked.items() if step in found), rest)
        for step in periods(trace)["step"]
    }


def _inside(trace: Trace, wanted: pl.Series) -> pl.DataFrame:
    """Host events that start in a step, with its ``step``."""
    events = trace.host_events.filter(wanted).select("name", "start_ns", "duration_ns")
    return between_marks(trace, events)


def between_marks(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Host events that begin between the marks of a step, with its ``step``."""
    marks = periods(trace).select("step", start_ns="host_start_ns", end_ns="host_end_ns")
    return intervals.beginning_in(events, marks)


def _launches(trace: Trace) -> Mapping[int, Launches]:
    """How often each kernel was launched in each step."""
    table = work(trace).filter(pl.col("step").is_not_null()).group_by("step", "name").agg(pl.len())
    found: dict[int, dict[str, int]] = {}
    for step, name, launches in table.with_columns(pl.col("name").cast(pl.String)).iter_rows():
        found.setdefault(step, {})[name] = launches
    return found


def _groups(lengths: Mapping[int, int], launches: Mapping[int, Launches]) -> list[list[int]]:
    """Similar steps, those that take most time together first."""
    groups = [part for group in _by_kernels(list(lengths), launches) for part in _by_length(group, lengths)]
    return sorted(groups, key=lambda group: -sum(lengths[step] for step in group))


def _by_kernels(steps: list[int], launches: Mapping[int, Launches]) -> list[list[int]]:
    groups: list[list[int]] = []
    for step in steps:
        kernels = launches.get(step, {})
        similar = (g for g in groups if similarity(launches.get(g[0], {}), kernels) >= SIMILAR)
        group = next(similar, None)
        if group is None:
            groups.append([step])
        else:
            group.append(step)
    return groups


def _by_length(steps: list[int], lengths: Mapping[int, int]) -> list[list[int]]:
    """Cut where the steps, from the shortest on, have become so many times as long."""
    groups: list[list[int]] = []
    for step in sorted(steps, key=lambda step: lengths[step]):
        if groups and lengths[step] <= TIMES_AS_LONG * lengths[groups[-1][0]]:
            groups[-1].append(step)
        else:
            groups.append([step])
    enough = [group for group in groups if len(group) >= ENOUGH]
    if len(enough) < 2:
        return [sorted(steps)]
    odd = [step for group in groups if len(group) < ENOUGH for step in group]
    for step in odd:
        min(enough, key=lambda group: abs(lengths[group[0]] - lengths[step])).append(step)
    return [sorted(group) for group in enough]


def similarity(one: Launches, other: Launches) -> float:
    """Jaccard's, of launches: what both have of all that either has. Nothing is like nothing."""
    every = (Counter(one) | Counter(other)).total()
    return (Counter(one) & Counter(other)).total() / every if every else 1.0
