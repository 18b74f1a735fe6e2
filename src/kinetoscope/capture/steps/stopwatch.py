"""The time of a step, from one boundary to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Lap(NamedTuple):
    """One step: its seconds, and whether something compiled meanwhile."""

    seconds: float
    compiled: bool


class Stopwatch:
    """Times steps by ``clock`` (seconds); ``compilations`` is a number that grows while anything compiles."""

    def __init__(self, clock: Callable[[], float], compilations: Callable[[], int]) -> None:
        self._clock, self._compilations = clock, compilations
        self.restart()

    def restart(self) -> None:
        """The time to the next boundary starts here: what went before was not a step of the program alone."""
        self._began, self._compiled = self._clock(), self._compilations()
        self._ended: float | None = None

    def end(self) -> None:
        """The step ends here, though the next has not begun."""
        self._ended = self._clock()

    @property
    def stopped(self) -> bool:
        """The step has ended, and the next has not begun."""
        return self._ended is not None

    def lap(self) -> Lap:
        """The step that has ended, at the latest here, where the next begins."""
        began, compiled, ended = self._began, self._compiled, self._ended
        self.restart()
        return Lap((self._began if ended is None else ended) - began, self._compiled != compiled)
