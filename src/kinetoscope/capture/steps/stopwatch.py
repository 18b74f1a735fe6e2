"""The time of a step, from one boundary to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kinetoscope.capture.steps.ledgers import Waited

# A place in the device's order of work, and its like where the device has no clock of its own.
Mark = Any


class Moment(NamedTuple):
    """What there is to know at a boundary.

    Attributes:
        seconds: the host's clock.
        mark: in the device's order of work; None where the device is not asked, or has no clock.
    """

    seconds: float
    waited: Waited
    mark: Mark | None


class StepTime(NamedTuple):
    """One step: its two boundaries, and whether something compiled between them."""

    began: Moment
    ended: Moment
    compiled: bool

    @property
    def seconds(self) -> float:
        return self.ended.seconds - self.began.seconds

    @property
    def data_s(self) -> float:
        """Seconds of waiting for the data loader."""
        return (self.ended.waited.data_ns - self.began.waited.data_ns) / 1e9


class StepTimes(list[StepTime]):
    """Consecutive steps, and sums kept as they come: what is asked at a boundary is part of the next step."""

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
    """Times steps.

    Args:
        clock: the host's, in seconds.
        compilations: a number that grows while something compiles.
        waited: what the host has waited for so far.
        mark: marks a place in the device's order of work.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        compilations: Callable[[], int],
        waited: Callable[[], Waited],
        mark: Callable[[], Mark | None],
    ) -> None:
        self._clock, self._compilations, self._waited, self._mark = clock, compilations, waited, mark
        self.restart()

    def restart(self, *, marking: bool = False) -> None:
        """The time to the next boundary starts here: what went before was not a step of the program alone.

        Args:
            marking: mark boundaries in the device's order of work, too, which costs microseconds each.
        """
        self._marking = marking
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
    def running_s(self) -> float:
        """Seconds since the step began."""
        return self._clock() - self._began.seconds

    def next_step(self) -> StepTime:
        """The step that has ended, at the latest here, where the next begins."""
        began, compiled, ended, now = self._began, self._compiled, self._ended, self._now()
        self._begin(now)
        return StepTime(began, now if ended is None else ended, self._compiled != compiled)

    def _begin(self, now: Moment) -> None:
        self._began, self._compiled = now, self._compilations()
        self._ended: Moment | None = None

    def _now(self) -> Moment:
        return Moment(self._clock(), self._waited(), self._mark() if self._marking else None)
