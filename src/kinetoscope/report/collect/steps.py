"""What steps took, how evenly they ran, and what the slow ones did."""

from __future__ import annotations

from kinetoscope.analysis import step_outliers
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import steps as analysis
from kinetoscope.report.collect.rows import rows
from kinetoscope.report.document import StepDifference, StepOutlierRow, StepRow, StepTimesRow, TimingRow


def steps(run: Run) -> list[StepRow]:
    """One row a rank's step."""
    return rows(analysis.steps(run), StepRow)


def step_times(run: Run) -> list[StepTimesRow]:
    """One row a rank with steps."""
    return rows(step_outliers.step_distribution(run), StepTimesRow)


def outliers(run: Run) -> list[StepOutlierRow]:
    """The steps that took much longer than the others of their rank."""
    return [
        StepOutlierRow(
            rank=step.rank,
            name=step.name,
            duration_us=step.duration_ns / 1000,
            median_us=step.median_ns / 1000,
            differences=[
                StepDifference(
                    kind=part.kind,
                    name=part.name,
                    extra_us=part.extra_ns / 1000,
                    count=part.count,
                    usual_count=part.usual_count,
                )
                for part in step.differences
            ],
        )
        for step in step_outliers.step_outliers(run)
    ]


def timings(run: Run) -> list[TimingRow]:
    """One row a rank that timed steps without the profiler; none for a bare trace."""
    return [
        TimingRow(
            rank=record.rank,
            found_by=record.steps.found_by,
            unprofiled_steps=len(record.steps.unprofiled_s),
            unprofiled_us=unprofiled * 1e6,
            unprofiled_min_us=min(record.steps.unprofiled_s) * 1e6,
            unprofiled_max_us=max(record.steps.unprofiled_s) * 1e6,
            profiled_us=None if profiled is None else profiled * 1e6,
        )
        for record in (run.manifest.ranks if run.manifest else ())
        if (unprofiled := record.steps.unprofiled_step_s) is not None
        for profiled in (record.steps.profiled_step_s,)
    ]
