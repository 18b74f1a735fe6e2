"""The time of steps: taken at their boundaries, settled or not, and whether enough of them is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from kinetoscope.capture.steps.ledgers import Prefetch, Waited
from kinetoscope.recording.manifest import TimedSteps

Mark = Any  # a place in the device's order of work, and its like where the device has no clock of its own


class Moment(NamedTuple):
    seconds: float  # the host's clock
    waited: Waited
    mark: Mark | None  # in the device's order of work; None where the device is not marked, or has no clock


class StepTime(NamedTuple):
    """One step: its two boundaries, and whether something compiled between them."""

    began: Moment
    ended: Moment
    compiled: bool
    # the end of the step before, where it did not begin there: something else came in
    since: Moment | None = None
    number: int = 0  # the program's own

    @property
    def seconds(self) -> float:
        return self.ended.seconds - self.began.seconds

    @property
    def data_s(self) -> float:
        return (self.ended.waited.data_ns - self.began.waited.data_ns) / 1e9


class StepTimes(list[StepTime]):
    """Consecutive steps, with running sums: work at a boundary is part of the next step."""

    seconds = 0.0
    data_s = 0.0

    def append(self, step: StepTime) -> None:
        super().append(step)
        self.seconds += step.seconds
        self.data_s += step.data_s

    def clear(self) -> None:
        super().clear()
        self.seconds = self.data_s = 0.0


class Stopwatch:
    def __init__(
        self,
        clock: Callable[[], float],  # the host's, in seconds
        compilations: Callable[[], int],  # a number that grows while something compiles
        waited: Callable[[], Waited],  # what the host has waited for so far
        mark: Callable[[], Mark | None],  # marks a place in the device's order of work
    ) -> None:
        self._clock, self._compilations, self._waited, self._mark = clock, compilations, waited, mark
        self.restart()

    def restart(self, *, marking: bool = False) -> None:
        """The time to the next boundary starts here: what went before was not a step of the program alone.
        With ``marking`` the device's order of work is marked, too, which costs microseconds each."""
        self._marking = marking
        self._since: Moment | None = None
        self._begin(self._now())

    def leave_out(self) -> None:
        """The next step begins here: none has run since the one before."""
        self._since = self._since or self._began
        self._begin(self._now())

    def spoil(self) -> None:
        """The step that is running counts no more than one in which something compiles."""
        self._compiled = -1

    def end(self) -> None:
        """The step ends here, though the next has not begun."""
        self._ended = self._now()

    @property
    def stopped(self) -> bool:
        """The step has ended, and the next has not begun."""
        return self._ended is not None

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def compilations(self) -> int:
        """A number that grows while something compiles."""
        return self._compilations()

    @property
    def running_s(self) -> float:
        """Seconds since the step began."""
        return self._clock() - self._began.seconds

    def next_step(self, number: int = 0) -> StepTime:
        """The step that has ended, at the latest here, where the next begins."""
        began, compiled, ended, now = self._began, self._compiled, self._ended, self._now()
        since, self._since = self._since, None
        self._begin(now)
        ended = now if ended is None else ended
        return StepTime(began, ended, self._compiled != compiled, since, number)

    def _begin(self, now: Moment) -> None:
        self._began, self._compiled = now, self._compilations()
        self._ended: Moment | None = None

    def _now(self) -> Moment:
        return Moment(self._clock(), self._waited(), self._mark() if self._marking else None)


# Of steps that take longer than the first of these a program that is tried out may have no more than a dozen
# (to time them for two seconds would take ten); of those that take longer than the second, four or five.
LONG_S, LONGER_S = 0.2, 1.0
# After so many step times we stop waiting and say that the step time never settled; of longer steps, after a
# few that last so long.
PATIENCE = 8
PATIENCE_LEAST, PATIENCE_S = 3, 4.0
# A loader's queue is longer than that: so many steps, or seconds, may pass until it has drained.
QUEUE_PATIENCE, QUEUE_PATIENCE_S = 64, 5.0
WAITS = 0.05  # a loop waits for its loader where this share of its time, or more, is such waiting
NEAR = 0.10  # waiting is back where it is within this share of its level


def settled(seconds: Sequence[float]) -> bool:
    """True when the latest of consecutive step times show no trend any more.

    Two in a row that agree within 5 %, three within 15 %, or, for steps that jitter, six whose later half has
    the median of its earlier half within 20 %.
    """
    return (
        (len(seconds) >= 2 and _spread(seconds[-2:]) <= 0.05)
        or (len(seconds) >= 3 and _spread(seconds[-3:]) <= 0.15)
        or (len(seconds) >= 6 and _spread([median(seconds[-6:-3]), median(seconds[-3:])]) <= 0.20)
    )


def _spread(seconds: Sequence[float]) -> float:
    """(max − min) ÷ min; infinite when a step took no time at all."""
    return (max(seconds) - min(seconds)) / min(seconds) if min(seconds) > 0 else float("inf")


def calm(times: Sequence[StepTime], prefetch: Prefetch) -> bool:
    """Whether the time of these steps has settled; where they wait for their loader, the time of whole rounds
    of its workers, since its batches come in bursts."""
    # Six rounds are all that is looked at.
    times = times[-6 * max(1, prefetch.workers) :]
    workers = 1 if waiting(times) is None else max(1, prefetch.workers)
    rounds = [times[end - workers : end] for end in range(len(times), workers - 1, -workers)]
    return settled([sum(step.seconds for step in one) for one in reversed(rounds)])


def takes_seconds(step: StepTime) -> bool:
    """Whether the program may have only four or five steps like this one, in which nothing compiled."""
    return step.seconds > LONGER_S and not step.compiled


def is_long(step: StepTime) -> bool:
    """Whether the program may have only a dozen steps like this one, in which nothing compiled."""
    return step.seconds > LONG_S and not step.compiled


def long_enough(times: StepTimes, *, few: bool) -> bool:
    """Whether these steps, which nothing compiled in, are all that is waited for: of ``few``, as soon as the
    latest is hardly faster than any before it, since these may differ as long as the program runs."""
    if len(times) < PATIENCE_LEAST:
        return False
    *before, latest = (step.seconds for step in times)
    warm = few and latest >= FALLING * min(before)
    return warm or len(times) >= PATIENCE or times.seconds >= PATIENCE_S


def patience_spent(steps: int, seconds: float) -> bool:
    """Whether steps have been let pass for as long as a loader's queue is given to drain."""
    return steps >= QUEUE_PATIENCE or seconds >= QUEUE_PATIENCE_S


def waiting(times: Sequence[StepTime]) -> float | None:
    """Seconds a step waits for its loader: the mean, since batches come in bursts; None: it does not."""
    return waited(
        sum(step.data_s for step in times),
        sum(step.seconds for step in times),
        len(times),
    )


def waited(data_s: float, step_s: float, steps: int) -> float | None:
    """Seconds per step of waiting for the loader, by sums over so many steps; None: it does not wait."""
    return data_s / steps if steps and data_s >= WAITS * step_s else None


def near(waited_s: float, level_s: float) -> bool:
    """Whether steps wait about as long as others do."""
    return abs(waited_s - level_s) <= NEAR * level_s


def recovered(times: Sequence[StepTime], waited_s: float | None, prefetch: Prefetch) -> bool:
    """Whether the steps since a pause are again as they were: their time has settled, and they wait for their
    loader as long as before (``waited_s`` per step; None: they did not).

    A pause can only fill the loader's queue, where it has one: waiting longer is none of its signs.
    """
    seconds = sum(step.seconds for step in times)
    if not (calm(times, prefetch) or len(times) >= PATIENCE or seconds >= PATIENCE_S):
        return False
    latest = times[-whole_rounds(4, prefetch) :]
    return (waited_s is None or not prefetch.batches) or (
        len(latest) == whole_rounds(4, prefetch)
        and sum(step.data_s for step in latest) >= (1 - NEAR) * waited_s * len(latest)
    )


def whole_rounds(steps: int, prefetch: Prefetch) -> int:
    """At least so many steps, in whole rounds of the loader's workers: their batches arrive together."""
    workers = max(1, prefetch.workers)
    return math.ceil(steps / workers) * workers


# Where a recorded step pauses the program for longer, two are recorded: eleven in four recordings would take
# a twentieth of a minute.
PAUSE_S = 0.25


def recorded_steps(before: Sequence[StepTime], prefetch: Prefetch, pause_s: float = 0.0) -> int:
    """How many steps to record, by those timed before: 3, or as many as make 10 ms, at most 10; 2 of those
    that take seconds, or pause the program for long (``pause_s`` each); of a loop that waits for its loader,
    whole rounds of the workers."""
    step_s = median(step.seconds for step in before) if before else math.inf
    least = 2 if LONGER_S < step_s < math.inf or pause_s > PAUSE_S else 3
    steps = max(least, min(10, round(10e-3 / step_s))) if step_s > 0 else 10
    return steps if waiting(before) is None else whole_rounds(steps, prefetch)


# Steps are timed until there are so many, or so many seconds have passed, but a few at least; of long steps,
# before they are recorded, a second suffices.
TIMED, TIMED_S, TIMED_LEAST, TIMED_LONG_S = 20, 2.0, 3, 1.0
SHORTEST_S = 0.02  # twenty steps of some microseconds are over before the processor has warmed to them
# A loop whose latest steps take this part of the time of those before them, or less, is still getting faster.
FALLING = 0.9

# Seconds by the device's clock between the two marks of each pair; waits until the device has come that far.
Elapsed = Callable[[Sequence[tuple[Mark, Mark]]], Sequence[float]]


def timed_steps(times: Sequence[StepTime], prefetch: Prefetch) -> int:
    """How many steps to time where their number must be known beforehand, by steps that went before."""
    step_s = sum(step.seconds for step in times) / len(times) if times else 0.0
    steps = max(TIMED_LEAST, min(TIMED, math.ceil(TIMED_S / step_s))) if step_s > 0 else TIMED
    return steps if waiting(times) is None else whole_rounds(steps, prefetch)


class Timing:
    """The steps timed so far. The device's clock is read once they are over, and only once."""

    def __init__(self, elapsed: Elapsed) -> None:
        self.elapsed = elapsed
        self.times = StepTimes()
        self._steps: TimedSteps | None = None

    def clear(self) -> None:
        self.times.clear()
        self._steps = None

    @property
    def waited_s(self) -> float | None:
        """Seconds that a step waited for its loader; None where it did not."""
        return waited(self.times.data_s, self.times.seconds, len(self.times))

    @property
    def step_s(self) -> float:
        """Seconds of a step, at the mean; none is timed: 0."""
        return self.times.seconds / len(self.times) if self.times else 0.0

    def enough(
        self, prefetch: Prefetch, more: int = 0, more_s: float = 0.0, *, of_bursts: int = TIMED
    ) -> bool:
        """Whether enough is timed with so many steps and seconds ``more``.

        Of a loop that waits for its loader, whole rounds of the workers: a mean over these has no bias. Its
        batches come in bursts, and where in one the timing begins and ends is worth less the more there are:
        ``of_bursts`` steps suffice.
        """
        steps = len(self.times) + more
        seconds = self.times.seconds + more_s
        bursts = self.waited_s is not None
        suffices = of_bursts if bursts else TIMED
        enough = (steps >= suffices and seconds >= SHORTEST_S) or (
            steps >= TIMED_LEAST and seconds >= TIMED_S
        )
        return enough and (not bursts or steps == whole_rounds(steps, prefetch))

    def falling(self) -> bool:
        """Whether the later half of these steps is so much faster that the program is still warming up.

        A loop over experts does so for some fifty steps: cuBLAS chooses for each new shape, kernels are
        loaded lazily, the allocator finds its blocks. Steps that wait for a loader are fast and slow in turn.
        """
        seconds = [step.seconds for step in self.times]
        half = len(seconds) // 2
        return (
            self.waited_s is None
            and half >= TIMED_LEAST
            and median(seconds[half:]) <= FALLING * median(seconds[:half])
        )

    def forget_half(self) -> None:
        self.keep(self.times[len(self.times) // 2 :])

    def keep(self, steps: Sequence[StepTime]) -> None:
        self.clear()
        for step in steps:
            self.times.append(step)

    def steps(self) -> TimedSteps | None:
        """The timed steps; None where there is none."""
        if self._steps is None and self.times:
            self._steps = by_device(self.times, self.elapsed) or by_host(self.times)
        return self._steps


TIMED_ON = 5000  # steps are timed on once all is recorded: so many at most


class TimingOn:
    """Steps timed once all is recorded, by the host's clock and nothing else: a reading where each ends.

    What seldom comes is missed by the seconds in which steps are timed before that.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.step_s, self.between_s = list[float](), list[float]()
        self.first, self.missing = 0, False
        self._came_in_s = self._began_s = 0.0
        self._compilations = 0

    @property
    def full(self) -> bool:
        return len(self.step_s) >= TIMED_ON

    def begin(self, stopwatch: Stopwatch, number: int) -> None:
        """The step of this number begins here, the first that is timed on."""
        self.clear()
        self.first, self._began_s, self._compilations = number, stopwatch.now_s, stopwatch.compilations

    def step_ended(self, stopwatch: Stopwatch) -> None:
        """A step ends here, and the next begins. One in which something compiles does not count."""
        now_s, compilations = stopwatch.now_s, stopwatch.compilations
        if compilations != self._compilations:
            self.missing = True
        elif not self.full:
            self.step_s.append(now_s - self._began_s)
            self.between_s.append(self._came_in_s)
        self._began_s, self._came_in_s, self._compilations = now_s, 0.0, compilations

    def leave_out(self, stopwatch: Stopwatch) -> None:
        """The next step begins here: none has run since the one before."""
        now_s = stopwatch.now_s
        self._came_in_s += now_s - self._began_s
        self._began_s = now_s

    def steps(self) -> TimedSteps | None:
        """The steps so far; None where there is none."""
        if not self.step_s:
            return None
        return TimedSteps(
            step_s=tuple(self.step_s),
            host_s=tuple(self.step_s),
            between_s=tuple(self.between_s) if any(self.between_s) else (),
            first=None if self.missing else self.first,
        )


def by_host(times: Sequence[StepTime]) -> TimedSteps:
    return _timed(times, None)


def by_device(times: Sequence[StepTime], elapsed: Elapsed) -> TimedSteps | None:
    """Steps by the device's clock, those that have it; None where none has."""
    marked = [step for step in times if step.began.mark is not None and step.ended.mark is not None]
    if not marked:
        return None
    try:
        return _timed(marked, elapsed([(step.began.mark, step.ended.mark) for step in marked]), elapsed)
    except RuntimeError:  # the device failed meanwhile, or the marks lie on two of them
        return None


def _timed(
    times: Sequence[StepTime], device_s: Sequence[float] | None, elapsed: Elapsed | None = None
) -> TimedSteps:
    host_s, waited = (
        tuple(step.seconds for step in times),
        [step.ended.waited.since(step.began.waited) for step in times],
    )
    ready_ns = [w.ready_ns for w in waited]
    return TimedSteps(
        step_s=host_s if device_s is None else tuple(device_s),
        host_s=host_s,
        data_s=tuple(w.data_ns / 1e9 for w in waited),
        sync_s=tuple(w.sync_ns / 1e9 for w in waited),
        gc_s=tuple(w.gc_ns / 1e9 for w in waited),
        ready_s=tuple(ns / 1e9 for ns in ready_ns if ns is not None) if None not in ready_ns else (),
        between_s=_between(times, elapsed),
        first=times[0].number if times[-1].number - times[0].number == len(times) - 1 else None,
        clock="host" if device_s is None else "device",
    )


def _between(times: Sequence[StepTime], elapsed: Elapsed | None) -> tuple[float, ...]:
    """Seconds that came in before each step; empty where nothing did."""
    came_in = [(place, step.since, step.began) for place, step in enumerate(times) if step.since is not None]
    seconds = [began.seconds - since.seconds for _, since, began in came_in]
    marks = [(since.mark, began.mark) for _, since, began in came_in]
    if elapsed is not None and marks and not any(mark is None for pair in marks for mark in pair):
        seconds = elapsed(marks)
    found = dict(zip((place for place, _, _ in came_in), seconds, strict=True))
    return tuple(found.get(place, 0.0) for place in range(len(times))) if found else ()
