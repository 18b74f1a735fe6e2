"""The program's own step, as it runs without the profiler, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from kinetoscope import numbers
from kinetoscope.document import AsItRuns, CauseRow, IdleRow, Report
from kinetoscope.render import names
from kinetoscope.views import phase_lines

# Of fewer steps nobody learns a range.
FEW = 5
# What takes more than twice as long is said as so many times, not as a percentage.
TIMES = 2.0


def step(report: Report) -> str | None:
    """How long the program's own step takes and how busy the device is in it; None where nobody timed it."""
    own = report.as_it_runs
    if own is None:
        return None
    rank = f" on the slowest rank ({own.rank})" if len(report.timings) > 1 else ""
    unit, time = phase_lines.unit(report), numbers.time(own.step_us.median)
    sentence = f"As it runs, a {unit} takes {time}{rank} ({_of(own)})"
    if own.busy_fraction is None:
        return f"{sentence}."
    idle = 1 - own.busy_fraction
    sentence += f"; the GPU is busy {numbers.percent(own.busy_fraction)} of it"
    if not own.idle or idle < 0.03:
        return f"{sentence}."
    return f"{sentence}, {numbers.percent(idle)} idle, {why(own.idle)}."


def inflation(report: Report) -> str:
    """How much longer a step took as recorded; empty where no steps were."""
    own = report.as_it_runs
    if own is None or own.inflation is None:
        return ""
    ratio = own.inflation
    if ratio > TIMES:
        return f"its step takes {ratio:,.1f} times as long"
    return f"its step takes {numbers.percent(abs(ratio - 1))} {'longer' if ratio >= 1 else 'less'}"


def drift(report: Report) -> str:
    """That the program's pace changed from before the recording to after it; empty where it did not."""
    own = report.as_it_runs
    if own is None or not own.drift or own.before_us is None or own.after_us is None:
        return ""
    return (
        f"Its pace drifts: {numbers.time(own.before_us)} a step before the recording "
        f"({own.n_before} steps), {numbers.time(own.after_us)} after it ({own.n_after})."
    )


def idle(report: Report) -> list[tuple[str, float]]:
    """Each cause of idle time and its share of the program's own step, longest first."""
    own = report.as_it_runs
    if own is None:
        return []
    return [(row.cause, row.idle_us / own.step_us.median) for row in own.idle]


def _of(own: AsItRuns) -> str:
    spread = own.step_us
    if own.before_us is None and own.after_us is None:
        return f"mean of {spread.n}"
    span = f", p10–p90 {numbers.span(spread.p10, spread.p90)}" if spread.n >= FEW else ""
    return f"median of {spread.n}{span}"


def why(causes: Sequence[CauseRow | IdleRow]) -> str:
    """What most of the idle time is for; of its causes, longest first."""
    share = causes[0].idle_us / sum(row.idle_us for row in causes)
    cause = names.shorten(causes[0].cause, 40)
    return f"mostly {cause}" if share >= 0.5 else f"{numbers.percent(share)} of that {cause}"
