"""A saving proved by a second recording: of the same program, after the change that a finding advises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.errors import InputError
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import Run
from kinetoscope.statistics.intervals import Verdict, student_t


class After(msgspec.Struct, frozen=True, kw_only=True):
    """What a second recording shows.

    Args:
        gone: rule and subject of the findings that it has no more.
        predicted_us: what those promised together, per step.
        saving_us: the mean step of the first recording less that of the second, without the profiler.
        interval_us: 95 %, from the spread of the steps; how runs differ from each other is not in it.
    """

    gone: list[tuple[str, str]]
    predicted_us: float
    saving_us: float
    interval_us: tuple[float, float]
    verdict: Verdict
    basis: str

    def proves(self, finding: Finding) -> bool:
        """Whether the difference is this finding's own: it is gone, and no other is."""
        return self.gone == [(finding.rule, finding.subject)]


def after(before: Run, later: Run) -> After:
    """Compare two recordings of one program.

    Raises:
        InputError: one of them does not have the time of at least two steps without the profiler.
    """
    first, second = _steps_us(before), _steps_us(later)
    left = {(finding.rule, finding.subject) for finding in find(later)}
    gone = [
        finding
        for finding in find(before)
        if finding.severity != "info"
        and finding.saving.us > 0
        and (finding.rule, finding.subject) not in left
    ]
    saving = _mean(first) - _mean(second)
    # Welch's interval, with the fewer steps' freedom: a little wide.
    error = math.sqrt(_variance(first) / len(first) + _variance(second) / len(second))
    margin = student_t(0.975, min(len(first), len(second)) - 1) * error
    interval = saving - margin, saving + margin
    return After(
        gone=sorted({(finding.rule, finding.subject) for finding in gone}),
        predicted_us=sum(finding.saving.us for finding in gone),
        saving_us=saving,
        interval_us=interval,
        verdict="faster" if interval[0] > 0 else "slower" if interval[1] < 0 else "cannot tell",
        basis=f"two recordings: a step of {numbers.time(_mean(first))} before, {numbers.time(_mean(second))} "
        f"after, means of {len(first)} and {len(second)}",
    )


def _steps_us(run: Run) -> Sequence[float]:
    """Steps without the profiler, of the slowest rank."""
    ranks = run.manifest.ranks if run.manifest else ()
    timed = [rank.steps.unprofiled_s for rank in ranks if len(rank.steps.unprofiled_s) > 1]
    if not timed:
        raise InputError(
            "the time of a step without the profiler is not known here",
            where=str(run.folder) if run.folder else None,
            hint="record both programs with `kinetoscope run`",
        )
    return [seconds * 1e6 for seconds in max(timed, key=_mean)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
