"""When the time of a step has settled."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# After so many step times we stop waiting and say that the step time never settled.
PATIENCE = 8


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


def timed_steps(step_s: float) -> int:
    """How many steps to time without the profiler: more where a step is too short for the host's clock."""
    return 3 if step_s >= 2e-3 else 5


def recorded_steps(step_s: float) -> int:
    """How many steps to record: 3, or as many as make 10 ms, at most 10."""
    return max(3, min(10, round(10e-3 / step_s))) if step_s > 0 else 10
