"""The steps that were timed while nothing recorded: how long they took, and what they waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import msgspec

from kinetoscope.recording.manifest import StepTimings, TimedSteps
from kinetoscope.statistics import rounds as series
from kinetoscope.statistics.distribution import median, quantile

# Of the step: from here on a loop waits for its loader, its steps short and long by rounds of workers.
WAITS_FOR_DATA = 0.05
# A long step takes so many times the median of all; a round of several, which hold others too, so many times.
LONG_STEP, LONG_ROUND = 2.0, 1.5
COMMON = 1 / 3  # long steps are rare where they are at most so much of all
# What rare steps add to the mean is reported where it is so much of the median; its cause is named where the
# host spent so much of it there.
RARE_MATTERS, KNOWN = 0.05, 0.25
SAME_PACE = 0.25  # steps timed later keep the pace where their median differs by no more than so much
FEWEST = 6  # steps timed before and after are distinguished only where each are enough for an interval


class Spread(msgspec.Struct, frozen=True):
    """Times of steps in µs; ``low`` to ``high``: 95 % of the median; ``mean``: rare long steps count, too."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    n: int
    mean: float = 0.0


class Waiting(msgspec.Struct, frozen=True):
    """The host's measured waiting in a step: µs at the median."""

    data_us: float
    sync_us: float
    gc_us: float


class RareSteps(msgspec.Struct, frozen=True):
    """Rare steps that take more than twice as long as the median one; of rounds, 1.5 times as long."""

    count: int
    of: int  # so many timed steps, or rounds of ``size`` steps, as a loader's workers make them
    extra_us: float  # what they add to a step at the mean
    longest_us: float  # of rounds, a step at the mean of the longest
    # ``data-loading``, ``synchronization`` or ``garbage-collection``, where the host spent most of what is
    # known of the additional time in it, and at least a quarter of all; null: unknown
    cause: str | None
    cause_us: float  # what it spent there, of ``extra_us``
    size: int = 1

    @property
    def more_us(self) -> float:
        """The time that each of them takes more than the others, at the mean."""
        return self.extra_us * self.of / self.count


class StepRound(msgspec.Struct, frozen=True, kw_only=True):
    """After every so many steps something longer happens: a checkpoint, an evaluation, an epoch's end."""

    steps: int  # of a round
    seen: int  # so many times was it seen
    round_us: float  # of such steps, with what comes in between them once
    between_us: float  # of that, what comes in
    per_step_us: float  # of a round, for each of its steps


class Unprofiled(msgspec.Struct, frozen=True):
    """Steps without the profiler: those before the recording and, where they are equal, those after it; where
    they are not, those of either that keep the pace of later ones. Where the profiler could not be taken out
    of the process again, those after say only whether the pace drifts.

    ``around`` are the medians of either (µs; None where there is none), ``drift`` says that their intervals
    do not overlap. ``recorded_data_us`` is the waiting for data in the recorded steps. ``words`` says what
    the figures are of. ``mean_us`` is the mean of the same steps and of those timed on later at the same
    pace, rare long ones included; ``rare`` are those, and ``round`` is what comes after every so many.
    """

    step: Spread
    counts: tuple[int, int]
    around: tuple[float | None, float | None]
    drift: bool
    waiting: Waiting | None
    recorded_data_us: float | None
    words: str
    mean_us: float
    rare: RareSteps | None = None
    round: StepRound | None = None


def unprofiled(timings: StepTimings) -> Unprofiled | None:
    """A rank's steps without the profiler, from its timings; None where none were timed."""
    around = _around(timings)
    timed = timed_steps(timings)
    if timed is None:
        return _by_the_mean(timings.unprofiled_s)
    size = _round(timings, timed)
    rounds_of = f", in rounds of {size} (the loader's workers)" if size > 1 else ""
    before, after = (None if steps is None else spread(steps.step_s, size) for steps in around)
    later, each = _later(timings, timed, size)
    parts = standing(timings)
    found = _found_rounds((*parts, later) if later is not None and each else parts, size)
    counted = _counted(around, timed)
    counted = _joined(counted, later) if later is not None and each else counted
    if found is not None and found.cold is not None and parts[0] is around[0]:
        counted = _without(counted, found.cold - (parts[0].first or 0))
    rare = rare_steps(counted, size)
    steps_s = timed.step_s if later is None else timed.step_s + later.step_s
    mean_us = 1e6 * mean(steps_s)
    if found is not None:
        mean_us = found.mean_us
    elif rare is not None and len(counted.step_s) > len(steps_s):
        # Rare steps, counted among more than those timed at its pace, are added to the usual step.
        mean_us = spread(timed.step_s, size).median + rare.extra_us
    return Unprofiled(
        spread(timed.step_s, size),
        (before.n if before else 0, after.n if after else 0),
        (before.median if before else None, after.median if after else None),
        before is not None and after is not None and _apart(before, after),
        _waiting(timed, size),
        None if timings.recorded is None else _of_rounds(timings.recorded.data_s, size),
        f"steps timed by the {timed.clock}'s clock{rounds_of}",
        mean_us,
        rare,
        None if found is None else found.round,
    )


def unprofiled_seconds(timings: StepTimings) -> tuple[float, ...]:
    """Each step timed without the profiler, in order."""
    timed = timed_steps(timings)
    return timings.unprofiled_s if timed is None else timed.step_s


def unprofiled_rounds_us(timings: StepTimings) -> list[float]:
    """``unprofiled_seconds`` as rounds, which are the same from one to the next, in µs."""
    timed = timed_steps(timings)
    size = 1 if timed is None else _round(timings, timed)
    return [1e6 * value for value in rounds(unprofiled_seconds(timings), size)]


def _around(timings: StepTimings) -> tuple[TimedSteps | None, TimedSteps | None]:
    """The steps before the recording and those after it, where there are any."""
    before, after = timings.before, timings.after
    return before if before and before.step_s else None, after if after and after.step_s else None


def timed_steps(timings: StepTimings) -> TimedSteps | None:
    """The steps that stand for the program, in one row."""
    parts = standing(timings)
    return _joined(*parts) if len(parts) > 1 else next(iter(parts), None)


def standing(timings: StepTimings) -> tuple[TimedSteps, ...]:
    """The steps that stand for the program: those before the recording, with those after it where the
    profiler was gone by then and they are equal. Where steps timed on later keep the pace of one of the two
    alone, that one; where they decide nothing and the two differ, those after it of a program that had become
    faster by then: it was still warming up before."""
    before, after = _around(timings)
    if before is None or after is None:
        return tuple(steps for steps in (before, after) if steps is not None)
    if not timings.released or before.clock != after.clock:
        return (before,)
    size = _round(timings, before)
    if size == 1 and timings.later is not None and len(timings.later.step_s) >= FEWEST:
        pace = median(timings.later.step_s)
        kept = [steps for steps in (before, after) if _near(pace, median(steps.host_s or steps.step_s))]
        if len(kept) == 1:
            return tuple(kept)
    earlier, later = spread(before.step_s, size), spread(after.step_s, size)
    if not _apart(earlier, later):
        return before, after
    return (after if later.median < earlier.median and not _waits_for_data(before) else before,)


def _counted(around: tuple[TimedSteps | None, TimedSteps | None], timed: TimedSteps) -> TimedSteps:
    """The steps among which rare ones are counted: all that were timed, whatever their pace."""
    before, after = around
    return _joined(before, after) if before and after and before.clock == after.clock else timed


def _later(timings: StepTimings, timed: TimedSteps, size: int) -> tuple[TimedSteps | None, bool]:
    """The steps timed on later where they keep the pace of those that stand for the program, and whether each
    is timed as these are.

    Pace is compared by the clock that both have, the host's. Where the device's clock says otherwise of a
    step, the host runs ahead and waits now and then: by its clock the mean is right, and no single step.
    """
    later = timings.later
    counts = later is not None and (timings.after is None or timings.released) and size == 1
    if later is None or not counts or len(later.step_s) < FEWEST:
        return None, False
    pace = median(later.step_s)
    if not _near(pace, median(timed.host_s or timed.step_s)):
        return None, False
    return later, _near(pace, median(timed.step_s))


def _near(seconds: float, others: float) -> bool:
    return abs(seconds - others) <= SAME_PACE * others


def _joined(before: TimedSteps, after: TimedSteps) -> TimedSteps:
    return TimedSteps(
        step_s=before.step_s + after.step_s,
        host_s=before.host_s + after.host_s,
        data_s=before.data_s + after.data_s,
        sync_s=before.sync_s + after.sync_s,
        gc_s=before.gc_s + after.gc_s,
        ready_s=before.ready_s + after.ready_s if before.ready_s and after.ready_s else (),
        clock=before.clock,
    )


def spread(seconds: Sequence[float], size: int = 1) -> Spread:
    """The spread of steps in seconds, taken in rounds of ``size``.

    The interval is that of order statistics (no distribution is assumed): where the median of so many lies
    between the two in 95 of 100 cases, rounded outwards.
    """
    values = sorted(1e6 * value for value in rounds(seconds, size))
    outer = max(0, math.floor(len(values) / 2 - 0.98 * math.sqrt(len(values))))
    return Spread(
        median(values),
        quantile(values, 0.1),
        quantile(values, 0.9),
        values[outer],
        values[-1 - outer],
        len(seconds),
    )


def rounds(values: Sequence[float], size: int) -> list[float]:
    """Means of ``size`` consecutive values; the last holds what is left over too."""
    starts = [*range(0, len(values) - size + 1, size)] or [0]
    return [
        mean(values[start:end])
        for start, end in zip(starts, [*starts[1:], len(values)], strict=True)
        if values
    ]


def rare_steps(timed: TimedSteps, size: int = 1) -> RareSteps | None:
    """The rare long ones among steps that are taken in rounds of ``size``; None where they do not matter."""
    values = rounds(timed.step_s, size)
    usual, times = median(values), LONG_STEP if size == 1 else LONG_ROUND
    rare = [place for place, value in enumerate(values) if value > times * usual]
    extra = sum(values[place] - usual for place in rare) / len(values)
    if not rare or len(rare) > COMMON * len(values) or extra < RARE_MATTERS * usual:
        return None
    waits = {"data-loading": timed.data_s, "synchronization": timed.sync_s, "garbage-collection": timed.gc_s}
    # Of steps timed on later only the time is known; they come last, and what the others did stands for them.
    measured = [place for place in rare if place < len(rounds(timed.data_s, size))]
    extra_measured = sum(values[place] - usual for place in measured)
    spent = {
        cause: sum(each[place] - median(each) for place in measured) * extra / extra_measured
        for cause, seconds in waits.items()
        if measured and len(each := rounds(seconds, size)) > measured[-1]
    }
    cause = max(spent, key=spent.__getitem__, default=None)
    known = cause is not None and spent[cause] >= KNOWN * extra
    return RareSteps(
        len(rare),
        len(values),
        1e6 * extra,
        1e6 * max(values),
        cause if known else None,
        1e6 * spent[cause] if cause is not None and known else 0.0,
        size,
    )


def _without(steps: TimedSteps, at: int) -> TimedSteps:
    """The steps but for one."""
    series = ("step_s", "host_s", "data_s", "sync_s", "gc_s", "ready_s")
    rest = {name: values[:at] + values[at + 1 :] for name in series if (values := getattr(steps, name))}
    return msgspec.structs.replace(steps, **rest)


class _FoundRounds(NamedTuple):
    """Rounds, and the mean of their steps without what is of none.

    What comes in once a round loads what it needs the first time: no figure counts that one. ``cold`` is the
    number of the step that it was part of; None where it was not timed, or came between two steps.
    """

    round: StepRound
    mean_us: float
    cold: int | None


def _found_rounds(parts: Sequence[TimedSteps], workers: int) -> _FoundRounds | None:
    """The rounds that steps come in, other than those of a loader's ``workers``; None where they do not
    matter. Steps timed before and after the recording are one series by their numbers; where these are not
    known, or none are found as between the phases of a job, the longer part alone is looked at."""
    longest = [max(parts, key=lambda part: len(part.step_s))]
    found = None if any(part.first is None for part in parts) else _rounds_of(parts, workers)
    return found or _rounds_of(longest, workers)


def _rounds_of(parts: Sequence[TimedSteps], workers: int) -> _FoundRounds | None:
    steps_us, whole_us = dict[int, float](), dict[int, float]()  # by the step's number
    for part in parts:
        between_s = part.between_s or [0.0] * len(part.step_s)
        for number, (step_s, more_s) in enumerate(zip(part.step_s, between_s, strict=True), part.first or 0):
            steps_us[number], whole_us[number] = 1e6 * step_s, 1e6 * (step_s + more_s)
    found, cold = series.rounds([*whole_us.values()], [*whole_us]), None
    numbered = parts[0].first is not None
    if found is not None and numbered and found.first < found.size and found.first in whole_us:
        rest = {number: us for number, us in whole_us.items() if number != found.first}
        warm = series.judged([*rest], [*rest.values()], found.size, found.first)
        if warm is not None:
            cold = found.first if steps_us == whole_us else None
            del steps_us[found.first]
            found = warm
    if found is None or found.size == workers or found.between < RARE_MATTERS * found.size * found.usual:
        return None
    row = StepRound(
        steps=found.size,
        seen=found.seen,
        round_us=found.whole,
        between_us=found.between,
        per_step_us=found.each,
    )
    return _FoundRounds(row, found.mean_of([*steps_us], [*steps_us.values()]), cold)


def _by_the_mean(seconds: Sequence[float]) -> Unprofiled | None:
    """The steps of a recording that waited for the device at both ends of all: only their mean is exact."""
    if not seconds:
        return None
    values = [1e6 * value for value in seconds]
    step = Spread(
        mean(values), quantile(values, 0.1), quantile(values, 0.9), min(values), max(values), len(values)
    )
    words = "step timed" if len(values) == 1 else "steps timed together, their mean"
    return Unprofiled(step, (len(values), 0), (None, None), False, None, None, words, mean(values))


def _round(timings: StepTimings, timed: TimedSteps) -> int:
    """How many steps are one round: those that the loader's workers make batches for in one go."""
    return timings.loader_workers or 1 if _waits_for_data(timed) else 1


def _waits_for_data(timed: TimedSteps) -> bool:
    return sum(timed.data_s) >= WAITS_FOR_DATA * sum(timed.step_s)


def _apart(before: Spread, after: Spread) -> bool:
    enough = min(before.n, after.n) >= FEWEST
    return enough and (before.high < after.low or after.high < before.low)


def _waiting(timed: TimedSteps, size: int) -> Waiting | None:
    found = [_of_rounds(seconds, size) for seconds in (timed.data_s, timed.sync_s, timed.gc_s)]
    if all(value is None for value in found):
        return None
    data, sync, gc = (value or 0.0 for value in found)
    return Waiting(data, sync, gc)


def _of_rounds(seconds: Sequence[float], size: int) -> float | None:
    return 1e6 * median(rounds(seconds, size)) if seconds else None
