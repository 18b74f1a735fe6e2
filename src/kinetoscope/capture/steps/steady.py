"""When the time of a step has settled, and when steps are again as they were before a pause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from kinetoscope.capture.steps.ledgers import Prefetch
from kinetoscope.capture.steps.stopwatch import StepTime

# After so many step times we stop waiting and say that the step time never settled.
PATIENCE = 8
# A loader's queue is longer than that: so many steps, or seconds, may pass until it has drained.
QUEUE_PATIENCE, QUEUE_PATIENCE_S = 64, 5.0
# A loop waits for its loader where this share of its time, or more, is such waiting.
WAITS = 0.05
# Waiting is back where it is within this share of its level.
NEAR = 0.10


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
    """Likewise, by the sums over so many steps."""
    return data_s / steps if steps and data_s >= WAITS * step_s else None


def near(waited_s: float, level_s: float) -> bool:
    """Whether steps wait about as long as others do."""
    return abs(waited_s - level_s) <= NEAR * level_s


def recovered(times: Sequence[StepTime], waited_s: float | None, prefetch: Prefetch) -> bool:
    """Whether the steps since a pause are again as they were: their time has settled, and they wait for their
    loader as long as before (``waited_s`` per step; None: they did not).

    A pause can only fill the loader's queue, where it has one: waiting longer is none of its signs.
    """
    if not (calm(times, prefetch) or len(times) >= PATIENCE):
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


def recorded_steps(before: Sequence[StepTime], prefetch: Prefetch) -> int:
    """How many steps to record, by those timed before: 3, or as many as make 10 ms, at most 10; of a loop
    that waits for its loader, whole rounds of the workers."""
    step_s = median(step.seconds for step in before) if before else math.inf
    steps = max(3, min(10, round(10e-3 / step_s))) if step_s > 0 else 10
    return steps if waiting(before) is None else whole_rounds(steps, prefetch)
