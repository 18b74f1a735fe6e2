"""The steps that were timed while nothing recorded: how long they took, and what they waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean

from kinetoscope.bench.measure.statistics import median, quantile
from kinetoscope.recording.manifest import StepTimings, TimedSteps

# Of the step: from here on a loop waits for its loader, its steps short and long by rounds of workers.
WAITS_FOR_DATA = 0.1
# Steps timed before and after are told apart only where each are enough for an interval.
FEWEST = 6


@dataclass(frozen=True)
class Spread:
    """Times of steps in µs; ``low`` to ``high`` is a 95 % interval of the median."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Waiting:
    """What the host waited for in a step, measured: µs at the median."""

    data_us: float
    sync_us: float
    gc_us: float


@dataclass(frozen=True)
class Unprofiled:
    """Steps without the profiler, those before the recording and those after it together.

    ``around`` are the medians of either (µs; None where there is none), ``drift`` says that their intervals
    do not overlap. ``waiting`` is None where it was not measured, ``recorded_data_us`` is the waiting for
    data in the recorded steps. ``words`` says what the figures are of.
    """

    step: Spread
    counts: tuple[int, int]
    around: tuple[float | None, float | None]
    drift: bool
    waiting: Waiting | None
    recorded_data_us: float | None
    words: str


def unprofiled(timings: StepTimings) -> Unprofiled | None:
    """What a rank's timings say of its steps without the profiler; None if nothing."""
    both = [
        steps if steps is not None and steps.step_s else None for steps in (timings.before, timings.after)
    ]
    timed = [steps for steps in both if steps is not None]
    if not timed:
        return _by_the_mean(timings.unprofiled_s)
    size = _round(timings, timed)
    apart = [None if steps is None else spread(steps.step_s, size) for steps in both]
    pooled = spread(unprofiled_seconds(timings), size)
    before, after = apart
    return Unprofiled(
        pooled,
        (before.n if before else 0, after.n if after else 0),
        (before.median if before else None, after.median if after else None),
        before is not None and after is not None and _apart(before, after),
        _waiting(timed, size),
        None if timings.recorded is None else _of_rounds(timings.recorded.data_s, size),
        _words(timed, size),
    )


def unprofiled_seconds(timings: StepTimings) -> tuple[float, ...]:
    """Each step timed without the profiler, in order."""
    timed = [steps.step_s for steps in (timings.before, timings.after) if steps is not None]
    return tuple(chain.from_iterable(timed)) or timings.unprofiled_s


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


def _by_the_mean(seconds: Sequence[float]) -> Unprofiled | None:
    """Of a recording that waited for the device at both ends of these steps: only their mean is exact."""
    if not seconds:
        return None
    values = [1e6 * value for value in seconds]
    step = Spread(
        mean(values), quantile(values, 0.1), quantile(values, 0.9), min(values), max(values), len(values)
    )
    words = "step timed" if len(values) == 1 else "steps timed together, their mean"
    return Unprofiled(step, (len(values), 0), (None, None), False, None, None, words)


def _round(timings: StepTimings, timed: Sequence[TimedSteps]) -> int:
    """How many steps are one round: those that the loader's workers make batches for in one go."""
    workers = timings.loader_workers or 1
    data, step = (
        sum(sum(values) for values in found)
        for found in ([t.data_s for t in timed], [t.step_s for t in timed])
    )
    return workers if data >= WAITS_FOR_DATA * step else 1


def _apart(before: Spread, after: Spread) -> bool:
    enough = min(before.n, after.n) >= FEWEST
    return enough and (before.high < after.low or after.high < before.low)


def _waiting(timed: Sequence[TimedSteps], size: int) -> Waiting | None:
    found = [
        _of_rounds(tuple(chain.from_iterable(ledgers)), size)
        for ledgers in (
            [steps.data_s for steps in timed],
            [steps.sync_s for steps in timed],
            [steps.gc_s for steps in timed],
        )
    ]
    if all(value is None for value in found):
        return None
    data, sync, gc = (value or 0.0 for value in found)
    return Waiting(data, sync, gc)


def _of_rounds(seconds: Sequence[float], size: int) -> float | None:
    return 1e6 * median(rounds(seconds, size)) if seconds else None


def _words(timed: Sequence[TimedSteps], size: int) -> str:
    clocks = " and ".join(sorted({steps.clock for steps in timed}))
    each = f", in rounds of {size} (the loader's workers)" if size > 1 else ""
    return f"steps timed by the {clocks}'s clock{each}"
