"""The data loader's workers as the program runs: whether its steps wait for them, and what a batch costs.

W workers that each take c seconds for a batch make W ÷ c batches a second. A loop that is faster waits for
them: in the long run its step takes max(step without waiting, c ÷ W), and what else gets faster only makes
the wait longer. The queue between them holds a batch for each worker at least, and changes nothing of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kinetoscope.analysis.passes.unprofiled import WAITS_FOR_DATA, rounds, timed_steps
from kinetoscope.recording.manifest import StepTimings, TimedSteps
from kinetoscope.statistics.distribution import mean, median, quantile

# Where it is not known which batches were ready: taking one over costs each step about the same, a few per
# cent of it, unless proven more.
MOST_HANDING_OVER = 0.1
# A step waits no longer than for a batch that is ready where it is within this share of the step.
READY = 0.01
FEWEST_READY = 3  # steps that found their batch ready, for their median to say what a step takes


class Loader(NamedTuple):
    """The loader of one rank; times in µs per step."""

    workers: int  # processes that make batches, 1 at least
    step_us: float  # the step as it runs
    handover_us: float  # what taking over a batch that is ready costs
    # waiting because none is ready: the mean, or what the step is longer by than without, typical of a round
    # of the workers, where that is less
    waiting_us: float
    compute_us: float  # the step if the loader did not bind: shorter by what it waits, at most

    @property
    def binds(self) -> bool:
        """Whether the loader, not the program's own work, sets the step's pace."""
        return self.waiting_us >= WAITS_FOR_DATA * self.step_us

    @property
    def pace_us(self) -> float:
        """The shortest step that the loader allows; 0 where it does not bind: then it is not known."""
        return self.step_us if self.binds else 0.0

    @property
    def batch_us(self) -> float:
        """The time that one worker takes for a batch; 0 where the loader does not bind."""
        return self.workers * self.pace_us


def loader(timings: StepTimings, step_us: float, busy_us: float | None) -> Loader | None:
    """A rank's loader, from its timed steps; None where it has no workers, or none that are known of.
    ``step_us``: the step as it runs. ``busy_us``: how long the device is busy in it; None without one."""
    timed, workers = timed_steps(timings), timings.loader_workers
    if timed is None or not workers or not any(timed.data_s):
        return None
    handover = _handover(timed, timings.recorded)
    beyond = [max(0.0, seconds - handover) for seconds in timed.data_s]
    own = [seconds - late for seconds, late in zip(timed.step_s, beyond, strict=True)]
    # Rare long waits are in the mean alone, and a machine that is busy now and then in the difference alone.
    longer_us = max(0.0, step_us - 1e6 * median(rounds(own, workers)))
    waiting_us = min(1e6 * mean(beyond), longer_us)
    found = Loader(workers, step_us, 1e6 * handover, waiting_us, step_us)
    if not found.binds:
        return found
    # Steps that found their batch ready may be the fast ones of a busy machine: that is not the loader's.
    compute_us = max(step_us - waiting_us, _compute_us(timed, handover))
    return found._replace(compute_us=min(step_us, max(compute_us, busy_us or 0.0)))


def _handover(timed: TimedSteps, recorded: TimedSteps | None) -> float:
    """Seconds that taking over a ready batch takes; 0 where none was ready."""
    if timed.ready_s:
        # Some that were ready were another worker's, out of turn: then it still waited.
        ready = [seconds for seconds in timed.ready_s if seconds > 0]
        return quantile(ready, 0.25) if len(ready) >= FEWEST_READY else 0.0
    # Most rounds hold steps that find their batch ready. If each step of all waits long, none does.
    usual = quantile(timed.data_s, 0.25)
    small = usual <= MOST_HANDING_OVER * median(timed.step_s)
    return usual if small or _waits_as_long_when_slower(timed, recorded) else 0.0


def _compute_us(timed: TimedSteps, handover: float) -> float:
    """The median of the steps that found their batch ready; 0 of too few."""
    longest = handover + READY * median(timed.step_s)
    ready = [step for step, data in zip(timed.step_s, timed.data_s, strict=True) if data <= longest]
    return 1e6 * median(ready) if len(ready) >= FEWEST_READY else 0.0


def _waits_as_long_when_slower(timed: TimedSteps, recorded: TimedSteps | None) -> bool:
    """Whether steps that the profiler made slower waited as long: for late batches they would have less."""
    if recorded is None or not any(recorded.data_s):
        return False
    waits, waited = median(timed.data_s), median(recorded.data_s)
    slower = _own(recorded.host_s, recorded.data_s) - _own(timed.host_s, timed.data_s)
    return slower >= waits / 2 and waited >= 0.75 * waits


def _own(host_s: Sequence[float], data_s: Sequence[float]) -> float:
    return median([host - data for host, data in zip(host_s, data_s, strict=True)])
