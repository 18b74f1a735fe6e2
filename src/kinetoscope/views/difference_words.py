"""What all renderers of a comparison say."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.document.difference import ChangePart, ComparedRun, CountChange, Difference, StepChange

MINUS = "\N{MINUS SIGN}"
REMARKS = {
    "good": "comparable: the same device, software and settings",
    "limited": "comparable with limits",
    "none": "not comparable: the times say nothing of the program",
}


def signed(us: float) -> str:
    """A difference of times with its sign."""
    return f"{MINUS if us < 0 else '+'}{numbers.time(abs(us))}"


def title(found: Difference) -> str:
    """Which runs, on what."""
    sides = " → ".join(", ".join(side.inputs) for side in (found.base, found.new))
    known = [*dict.fromkeys(map(_place, (found.base, found.new)))]
    return " · ".join([sides, *filter(None, known)])


def _place(side: ComparedRun) -> str:
    torch = [f"torch {side.torch}"] if side.torch else []
    return ", ".join([*side.devices, *torch])


def headline(found: Difference) -> str:
    """By how much the step differs, or why it cannot be told, as of an incomplete recording."""
    step = found.step
    if found.lost:
        return f"Nothing can be judged: {found.lost[0]}"
    if step is None:
        return "Nothing but compiling was recorded in one of them: no step to compare."
    times = f"{step.unit} {numbers.time(step.base_us)} → {numbers.time(step.new_us)}"
    if step.verdict == "same":
        return f"{times}: the same {interval(step)}"
    if step.verdict == "cannot tell":
        return f"{times}: cannot tell {interval(step)}"
    much = numbers.percent(abs(step.fraction))
    return f"{times}: {step.verdict} by {numbers.time(abs(step.delta_us))}, {much} {interval(step)}"


def interval(step: StepChange) -> str:
    """Of the difference, in percent."""
    bounds = [
        f"{100 * bound:+.1f}".replace("-", MINUS) if bound is not None else "∞"
        for bound in (step.low_fraction, step.high_fraction)
    ]
    return f"(95 %: {bounds[0]} to {bounds[1]} %)"


def reason(found: Difference) -> tuple[str, str]:
    """The heading of what changed, and what is to be known of it."""
    if found.step is None:
        return "In compiling", ""
    if found.step.verdict in ("faster", "slower"):
        return "Because of", f"sums to the {found.step.unit}'s difference"
    return "What differs", "what was done otherwise first; times alone may be noise"


def next_step(found: Difference) -> str | None:
    """What would tell, where the times do not."""
    if found.lost:
        return "Record it again: what is shown below is of what is left"
    if found.step is None or found.step.verdict != "cannot tell":
        return None
    several = "more runs of each" if found.base.runs + found.new.runs > 2 else "five runs of each, in folders"
    return f"To tell: {several} (in turn), or kinetoscope compare"


def did(change: ChangePart) -> str:
    """What became of it, in a few words: how often, how long each."""
    before, after = change.launches
    each = change.per_launch_us
    if change.kind not in ("kernel", "op"):
        return f"{_times(before)} → {_times(after)} launches a step" if before != after else change.what
    if change.what in ("slower", "faster") and each is not None:
        return f"{change.what} at the same work: {numbers.time(each[0])} → {numbers.time(each[1])} each"
    if change.what in ("slower", "faster"):
        return f"{change.what}: {numbers.time(_us(change, 0))} → {numbers.time(_us(change, 1))} a step"
    return f"{change.what}: {_times(before)} → {_times(after)} a step"


def _us(change: ChangePart, side: int) -> float:
    return sum(work.us for work in (change.base, change.new)[side])


def _times(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"


def where(change: ChangePart) -> str:
    """The op and the line."""
    own = [work.name for work in (*change.base, *change.new)]
    ops = [op for op in change.ops if op not in own][:2]
    return " · ".join([*ops, *([change.source] if change.source else [])])


def counts(found: Difference) -> Iterable[tuple[CountChange, str, str]]:
    """Those that differ, exact ones first, with both values."""
    differing = [
        row for row in found.counts if row.base is not None and row.new is not None and row.base != row.new
    ]
    for row in sorted(differing, key=lambda row: not row.exact):
        yield row, numbers.quantity(row.base or 0.0, row.unit), numbers.quantity(row.new or 0.0, row.unit)


def same_counts(found: Difference) -> list[str]:
    """Names of what is counted exactly and did not change."""
    return [row.name for row in found.counts if row.exact and row.base is not None and row.base == row.new]
