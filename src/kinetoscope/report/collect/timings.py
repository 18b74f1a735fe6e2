"""What a step cost without and with the profiler, from the recording's manifest."""

from __future__ import annotations

from kinetoscope.analysis.run import Run
from kinetoscope.report.document.report import TimingRow


def timings(run: Run) -> list[TimingRow]:
    """One row a rank that timed steps without the profiler; none for a bare trace."""
    if run.manifest is None:
        return []
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
        for record in run.manifest.ranks
        if (unprofiled := record.steps.unprofiled_step_s) is not None
        for profiled in (record.steps.profiled_step_s,)
    ]
