"""The part of a recording that is replayed: steps of the kind that takes most time, without outliers; of a
serving engine, whose prefills and decodes take turns, steps of all kinds, as often as they are."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import DEVICE_WAIT
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.device_work import launched
from kinetoscope.analysis.time.busy import steps_of
from kinetoscope.analysis.time.phases import leading_of, phases_of
from kinetoscope.analysis.time.window import CONTIGUOUS, CONTIGUOUS_NS, window
from kinetoscope.statistics.distribution import median
from kinetoscope.trace.engines import engine_step
from kinetoscope.trace.model import Trace

# A step that took so much more or less than the median is an outlier: it is not what the step costs.
LIKE = 0.25
# Device work in as many steps as it takes to be representative: more costs time and tells nothing new.
ENOUGH_WORK = 30_000


class Spans(Struct, frozen=True):
    """Segments of host time, in order and apart: their ``bounds`` (start_ns, end_ns; steps whose marks follow
    each other are one), how many ``steps`` they are (0: the whole recording), the step as recorded by the
    device's clock at the median (``recorded_us``; the mean where phases take turns), and that of the steps
    that are replayed at the mean (``mean_us``)."""

    bounds: tuple[tuple[int, int], ...]
    steps: int
    recorded_us: float
    mean_us: float


@remembered
def spans(trace: Trace) -> Spans:
    leading = leading_of(trace) if len(trace.steps) else pl.DataFrame()
    if leading.is_empty():
        within = window(trace)
        length_us = within.length_ns / 1000
        return Spans(((within.start_ns, within.end_ns),), 0, length_us, length_us)
    return of_steps(trace, chosen(trace))


def of_steps(trace: Trace, steps: Sequence[int]) -> Spans:
    turns = _turns(trace)
    table = leading_of(trace) if turns.is_empty() else turns
    lengths = table["duration_ns"].filter(table["step"].is_in(steps))
    mean_us = sum(lengths) / max(1, len(lengths)) / 1000
    usual_us = mean_us if len(turns) else median(table["duration_ns"].to_list()) / 1000
    return Spans(tuple(_bounds(trace, steps)), len(steps), usual_us, mean_us or usual_us)


@remembered
def chosen(trace: Trace) -> tuple[int, ...]:
    if len(turns := _turns(trace)):
        return tuple(_of_each_phase(trace, turns))
    leading = leading_of(trace)
    return tuple(_like(trace, leading, median(leading["duration_ns"].to_list())))


def _turns(trace: Trace) -> pl.DataFrame:
    """All steps (``step``, ``phase``, ``duration_ns``) of a serving engine, if they are of several phases."""
    steps = steps_of(trace).select("rank", "step", "duration_ns")
    if steps.is_empty() or engine_step(trace.steps["name"][0]) is None:
        return steps.clear()
    named = steps.join(phases_of(trace), on=["rank", "step"], maintain_order="left")
    return named if named["phase"].n_unique() > 1 else named.clear()


def _of_each_phase(trace: Trace, turns: pl.DataFrame) -> list[int]:
    """As many of each phase's steps, evenly, as together have enough work."""
    events = len(launched(trace).filter(pl.col("step").is_in(turns["step"].implode())))
    every = -(-events // ENOUGH_WORK) or 1
    place = pl.int_range(pl.len()).over("phase")
    return turns.filter(place % every == 0)["step"].sort().to_list()


def _like(trace: Trace, leading: pl.DataFrame, usual: float) -> list[int]:
    apart = (pl.col("duration_ns") - usual).abs()
    nearest = leading.filter(apart <= LIKE * usual).sort(apart, "step")
    work = launched(trace).group_by("step").agg(work=pl.len())
    nearest = nearest.join(work, on="step", how="left", maintain_order="left")
    before = nearest["work"].fill_null(0).cum_sum().shift(1, fill_value=0)
    kept = nearest.filter(before < ENOUGH_WORK)
    if kept.is_empty():
        # Of two steps that differ the shorter: what one of them waited for is not what a step costs.
        # Of more, all: they take turns, as the rounds of a loader's workers do.
        kept = leading.sort("duration_ns").head(1) if len(leading) <= 2 else leading
    return kept["step"].sort().to_list()


def _bounds(trace: Trace, steps: Sequence[int]) -> list[tuple[int, int]]:
    table = trace.steps.select("start_ns", END)
    marks = list(table.iter_rows())
    bounds: list[tuple[int, int]] = []
    for step in steps:
        start, end = marks[step]
        if step + 1 < len(marks):
            following = marks[step + 1][0]
            near = following - end <= max(CONTIGUOUS * (end - start), CONTIGUOUS_NS)
            end = following if near else end
        else:
            end = _without_the_recorders_wait(trace, start, end, len(steps))
        if bounds and bounds[-1][1] == start:
            bounds[-1] = bounds[-1][0], end
        else:
            bounds.append((start, end))
    return bounds


def _without_the_recorders_wait(trace: Trace, start: int, end: int, steps: int) -> int:
    """Where the last recorded step ends: before a wait for the device that no other step has."""
    host = trace.host_events
    calls = host["start_ns"].filter(matching(host, "name", DEVICE_WAIT)).sort()
    inside = calls.filter(calls.is_between(start, end))
    others = calls.filter(calls < start).len() + inside.len() - 1
    points = launched(trace)["point_ns"]
    last = points.filter(points.is_between(start, end)).max()
    alone = steps > 1 and len(inside) > 0 and others < steps - 1
    if alone and (last is None or inside[-1] >= last):
        return int(inside[-1])
    return end
