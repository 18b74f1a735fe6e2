"""Iterations of a program that acts and then trains on what came of it: runs of calls without gradients, each
followed by several steps of an optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple

FEWEST = 2  # an iteration has so many calls without gradients, and so many steps, at least
SIMILAR = 2  # similar runs differ in length by this factor at most: an episode ends when it ends
MOST_STEPS = 2_000  # an iteration of more optimizer steps than that is not waited for


class Iteration(NamedTuple):
    """A run of calls without gradients, of the module called first, and the optimizers' steps that follow."""

    acts: int
    updates: int

    def like(self, other: Iteration) -> bool:
        pairs = zip(self, other, strict=True)
        return all(max(pair) <= SIMILAR * min(pair) and min(pair) >= FEWEST for pair in pairs)


class Iterations:
    """Looks for iterations, from the program's first call on.

    Whoever acts has acted before it trains for the first time. That sets it apart from evaluation after each
    epoch and from statistics that are gathered anew, and is required. Calls with a batch of a data loader
    each are an evaluation, whenever they come, and so are those in the loop in which one optimizer steps
    again and again: who trains on what came of acting has a loop of its own for that.
    """

    looking: bool  # an iteration may still be found
    found: Iteration | None  # the latest iteration, once two in a row were similar

    def __init__(self) -> None:
        self.looking, self.found = True, None
        self._acts = Counter[Hashable]()
        self._fed = self._updates = 0
        self._of_one = Counter[Hashable]()
        self._last: Iteration | None = None

    def acted(
        self, module: Hashable = 0, *, fed: bool = False, between: Callable[[], bool] = lambda: False
    ) -> bool:
        """The model is called without gradients: whether a third iteration begins after two similar ones.
        ``fed``: a data loader has given a batch since the call before. ``between``: whether it is called in
        the very loop in which an optimizer steps; asked once a run."""
        if self.looking and self._updates:
            # Each pass of that loop has one step, and now and then an evaluation.
            if max(self._of_one.values()) >= FEWEST and between():
                self.looking = False
            self._of_one.clear()
            now = Iteration(next(iter(self._acts.values())), self._updates)
            self._acts.clear()
            self._fed = self._updates = 0
            # A module that acts once may have been tried out, but not once more.
            once = self._last is not None and max(now.acts, self._last.acts) < FEWEST
            if now.updates < FEWEST or once:
                self.looking = False  # acting is a part of every step
            elif self.looking and self._last is not None and now.like(self._last):
                self.looking, self.found = False, now
            self._last = now
        self._acts[module] += 1
        self._fed += fed
        return self.found is not None

    def stepped(self, optimizer: Hashable = 0, *, between: Callable[[], bool] = lambda: False) -> None:
        """An optimizer steps. ``between``: whether the first calls without gradients were made in the very
        loop in which it does; asked once a run."""
        if self._updates == 0:
            acts = self._acts.total()
            self.looking = self.looking and acts >= FEWEST and 2 * self._fed < acts
        self._updates += 1
        self._of_one[optimizer] += 1
        again = self._of_one[optimizer] == FEWEST
        self.looking = self.looking and self._updates <= MOST_STEPS and not (again and between())
