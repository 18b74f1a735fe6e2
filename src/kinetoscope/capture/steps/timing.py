"""Timing steps while nothing records: how many, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from kinetoscope.capture.steps.ledgers import Prefetch
from kinetoscope.capture.steps.steady import waited, waiting, whole_rounds
from kinetoscope.capture.steps.stopwatch import Mark, StepTime, StepTimes
from kinetoscope.recording.manifest import TimedSteps

# Steps are timed until there are so many, or so many seconds have passed, but a few at least.
TIMED, TIMED_S, TIMED_LEAST = 20, 2.0, 3
# Twenty steps of some microseconds are over before the processor has warmed to them.
SHORTEST_S = 0.02
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
    """The steps timed so far. The device's clock is asked once they are over, and only once."""

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
        """Forget the earlier half of these steps."""
        later = list(self.times)[len(self.times) // 2 :]
        self.clear()
        for step in later:
            self.times.append(step)

    def steps(self) -> TimedSteps | None:
        """What was timed; None where nothing was."""
        if self._steps is None and self.times:
            self._steps = by_device(self.times, self.elapsed) or by_host(self.times)
        return self._steps


def by_host(times: Sequence[StepTime]) -> TimedSteps:
    """Steps by the host's clock."""
    return _timed(times, None)


def by_device(times: Sequence[StepTime], elapsed: Elapsed) -> TimedSteps | None:
    """Steps by the device's clock, those that have it; None where none has."""
    marked = [step for step in times if step.began.mark is not None and step.ended.mark is not None]
    if not marked:
        return None
    try:
        return _timed(marked, elapsed([(step.began.mark, step.ended.mark) for step in marked]))
    except RuntimeError:  # the device failed meanwhile, or the marks lie on two of them
        return None


def _timed(times: Sequence[StepTime], device_s: Sequence[float] | None) -> TimedSteps:
    host_s, waited = (
        tuple(step.seconds for step in times),
        [step.ended.waited.since(step.began.waited) for step in times],
    )
    return TimedSteps(
        step_s=host_s if device_s is None else tuple(device_s),
        host_s=host_s,
        data_s=tuple(w.data_ns / 1e9 for w in waited),
        sync_s=tuple(w.sync_ns / 1e9 for w in waited),
        gc_s=tuple(w.gc_ns / 1e9 for w in waited),
        clock="host" if device_s is None else "device",
    )
