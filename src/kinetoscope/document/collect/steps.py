"""Steps as rows: their times, their phases, and what the slow ones did."""

from __future__ import annotations

from msgspec.structs import replace

from kinetoscope import document
from kinetoscope.analysis import step_outliers
from kinetoscope.analysis.passes import as_it_runs as own
from kinetoscope.analysis.passes.whole_run import whole_run
from kinetoscope.analysis.serving.table import replays, serving, with_client
from kinetoscope.analysis.time import busy
from kinetoscope.analysis.time import phases as kinds
from kinetoscope.document.collect.rows import row, rows, rows_within
from kinetoscope.findings import by_phase
from kinetoscope.findings.registry import find
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.engines import engine_step


def steps(run: LoadedRun) -> list[document.StepRow]:
    """One row a rank's step; those that a serving engine marked are in ``serving``."""
    named = kinds.phases(run)
    found = rows(busy.steps(run).join(named, on=["rank", "step"], maintain_order="left"), document.StepRow)
    return [row for row in found if engine_step(row.name) is None]


def phases(run: LoadedRun) -> list[document.PhaseRow]:
    """One row a phase of a rank, and one a part of its requests."""
    table = kinds.phase_rows(run)
    return rows(table, document.PhaseRow, kernels=rows_within(table["kernels"], document.PhaseKernel))


def step_times(run: LoadedRun) -> list[document.StepTimesRow]:
    return rows(step_outliers.step_distribution(run), document.StepTimesRow)


def as_it_runs(run: LoadedRun) -> document.AsItRunsRow | None:
    """The program's own step; None for a bare trace."""
    found = own.slowest(run)
    if found is None:
        return None
    timed = found.timed
    return row(
        document.AsItRunsRow,
        found,
        step_us=replace(timed.step, mean=timed.mean_us),
        step=_own_step(run),
        idle=[document.CauseRow(cause=cause, idle_us=us) for cause, us in found.idle.items()],
        waiting=timed.waiting,
        n_before=timed.counts[0],
        n_after=timed.counts[1],
        before_us=timed.around[0],
        after_us=timed.around[1],
        drift=timed.drift,
        recorded_step_us=found.recorded_us,
        mean_us=timed.mean_us,
        rare_steps=timed.rare,
        round=timed.round,
    )


def timings(run: LoadedRun) -> list[document.TimingRow]:
    """One row a rank that timed steps without the profiler; none for a bare trace."""
    ranks = own.as_it_runs(run)
    return [
        document.TimingRow(
            rank=record.rank,
            found_by=record.steps.found_by,
            unprofiled_us=ranks[record.rank].timed.step.median,
            profiled_us=ranks[record.rank].recorded_us,
        )
        for record in run.records
        if record.rank in ranks
    ]


def _own_step(run: LoadedRun) -> document.OwnStep | None:
    found, watched = levels(run), whole_run(run)
    if found is None or not found.levels:
        return None
    record = next(one for one in run.records if one.steps.levels)
    steps = record.steps
    timed = [len(one.step_s) for one in (steps.before, steps.recorded, steps.after) if one is not None]
    return document.OwnStep(
        name=found.levels[0].name,
        found_by=steps.found_by,
        calls_seen=len(steps.warmup_s) + sum(timed),
        calls=None if watched is None else watched.about_steps,
        share_of_run=None if watched is None else watched.steps_share,
        levels=[
            document.StepLevelTime(name=level.name, per_step=level.calls, median_us=level.each_us)
            for level in found.levels
        ],
    )


def of_server(run: LoadedRun, client: ClientTimes | None = None) -> document.Serving | None:
    """A server's steps with what to change in them, and what a client measured; None where there are none."""
    found = serving(run) if client is None else with_client(run, client)
    return None if found is None else replace(found, findings=by_phase.rows_of(found, find(run)))


def listing(run: LoadedRun, client: ClientTimes | None = None) -> document.StepsListing | None:
    """The listing of `kinetoscope steps`, with what a client measured; None where a step is not known."""
    found = document.StepsListing(
        as_it_runs=as_it_runs(run),
        step_levels=levels(run),
        serving=of_server(run, client),
        graph_replays=replays(run),
    )
    return found if found.step_levels or found.serving or found.as_it_runs else None


def levels(run: LoadedRun) -> document.StepLevels | None:
    """The step, its parts and its rivals on the first rank that says so."""
    record = next((one for one in run.records if one.steps.levels or one.steps.candidates), None)
    if record is None:
        return None
    timed = own.as_it_runs(run).get(record.rank)
    step_us = None if timed is None else timed.step_us
    return document.StepLevels(
        levels=[
            row(document.StepLevelRow, level, each_us=_us(level.seconds) if place else step_us)
            for place, level in enumerate(record.steps.levels)
        ],
        candidates=[
            row(
                document.StepCandidateRow,
                candidate,
                each_us=_us(candidate.seconds),
                option=candidate.name if candidate.kind in NAMED else candidate.kind,
            )
            for candidate in record.steps.candidates
        ],
    )


# Sources that have names of their own; of the others there is one of its kind.
NAMED = ("optimizer", "module", "range")


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
