"""Where in the program a source's calls stand, and how many of them make one round of the loop around them.

A denoising step with guidance calls its network twice, from two lines of one loop: a step is both calls. The
calls alone do not say so; the places that they are made from do, since these repeat with every round.
"""

from __future__ import annotations

import inspect
import os
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import kinetoscope
from kinetoscope.capture import cells
from kinetoscope.capture.steps.loops import Loop, Position, Site, loops_around

LONGEST_ROUND = 16
ROUNDS = 3  # a round is believed once it has been seen so often in a row
KEPT = LONGEST_ROUND * ROUNDS
# So many calls from one place in a row, and so many times as many as there were before, are a loop's of their
# own: what came before, as where a benchmark waits for the device before it reads the clock, is none of it.
ALONE = 8
LOST = 4  # without its first call for so many rounds, a round ends all the same

OURS = os.path.dirname(kinetoscope.__file__) + os.sep


class CallStack:
    """The program's functions on the stack, as far as they are known: here, not at all."""

    def site(self) -> Site:
        return ()

    def position(self, depth: int) -> Position | None:
        """The position of the function so many calls above the innermost one."""
        return None

    def place(self) -> str:
        """``under sample (guided.py:80)``, of the innermost function; empty where there is none."""
        return ""

    def loops(self) -> list[Loop]:
        """The loops around what runs, the outermost first."""
        return []

    def within(self, loop: Loop) -> bool:
        """Whether what runs is called in a pass of this loop, wherever that is called."""
        return True


UNKNOWN_STACK = CallStack()


class ProgramStack(CallStack):
    """The stack of the thread that asks, without the frames of torch and of kinetoscope; keeps no frame."""

    def __init__(self) -> None:
        import torch

        self.hidden = (OURS, os.path.dirname(torch.__file__) + os.sep)

    def _frames(self) -> Iterator[FrameType]:
        frame = inspect.currentframe()
        while frame is not None:
            if not frame.f_code.co_filename.startswith(self.hidden):
                yield frame
            frame = frame.f_back

    def site(self) -> Site:
        return tuple((id(frame.f_code), frame.f_lasti) for frame in self._frames())[::-1]

    def position(self, depth: int) -> Position | None:
        frame = next(islice(self._frames(), depth, None), None)
        return None if frame is None else (id(frame.f_code), frame.f_lasti)

    def place(self) -> str:
        frame = next(self._frames(), None)
        if frame is None:
            return ""
        code: Any = frame.f_code
        where = f"{os.path.basename(cells.named(code.co_filename))}:{frame.f_lineno}"
        name = getattr(code, "co_qualname", code.co_name)
        return f"at {where}" if name == "<module>" else f"under {name} ({where})"

    def loops(self) -> list[Loop]:
        return loops_around([(frame.f_code, frame.f_lasti) for frame in self._frames()][::-1])

    def within(self, loop: Loop) -> bool:
        frame = inspect.currentframe()  # asked in each pass: less than a microsecond
        while frame is not None:
            if id(frame.f_code) == loop.code and loop.first <= frame.f_lasti <= loop.last:
                return True
            frame = frame.f_back
        return False


def period(calls: Sequence[Hashable]) -> int | None:
    """The length of the round that the latest calls repeat: the one that explains most of them, and of these
    the shortest; None where no round has come so often in a row."""
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(call, len(known)) for call in calls]  # compared sooner than call sites
    best, reach = None, 0
    for length in range(1, min(LONGEST_ROUND, len(calls) // ROUNDS) + 1):
        at = len(calls) - 1
        while at >= length and numbers[at] == numbers[at - length]:
            at -= 1
        periodic = len(calls) - 1 - at + length
        if periodic >= ROUNDS * length and periodic > reach:
            best, reach = length, periodic
    return best


class LoopRound(NamedTuple):
    calls: int  # how many it has
    depth: int  # of the function that the loop's body is in, counted from the innermost one of the first call
    first: Position  # the position of the first call in that function


def first_call(sites: Sequence[Site]) -> int:
    """Which call of a round comes first in the body of the loop.

    The calls' stacks part in the function that the body is in; the one that has come least far in it is the
    first. Where they part in different functions, nothing is first, and the round stays as it is.
    """
    level = _parting(sites)
    if any(len(site) <= level or site[level][0] != sites[0][level][0] for site in sites):
        return 0
    least = min(site[level][1] for site in sites)
    # Of equal ones, calls of an inner loop, the one that follows another.
    ready = [place for place, site in enumerate(sites) if site[level][1] == least]
    return next((place for place in ready if (place - 1) % len(sites) not in ready), ready[0])


def _parting(sites: Sequence[Site]) -> int:
    shortest = min(map(len, sites))
    return next((at for at in range(shortest) if len({site[at] for site in sites}) > 1), shortest)


class CallLoop:
    """The latest call sites of one source (``together``: calls from one place in a row count as one), and the
    round that they repeat."""

    def __init__(self, *, together: bool = False) -> None:
        self.together = together
        self.sites: deque[Site] = deque(maxlen=KEPT)
        self.calls = 0
        self.round: LoopRound | None = None  # that was found; None: each call is a round
        self.since = 0  # calls since the first of the latest round
        self.row = 0  # latest calls from one place
        self.regular = True  # all calls so far come from one place
        self._there = self._here = False  # the next call, and the latest, are where a round begins
        self.length: int | None = None  # of the round that the latest calls repeat; None: of none

    @property
    def looking(self) -> bool:
        """Whether further calls may still show another round."""
        return self.calls < (KEPT * ROUNDS if self.together else KEPT)

    @property
    def undecided(self) -> bool:
        """Whether the calls come from several places and no round is known yet."""
        return self.looking and self.round is None and not self.regular and self.length is None

    def stop(self) -> None:
        self.calls = KEPT * ROUNDS

    def called(self, site: Site) -> bool:
        """A call from here: whether it shows another round than was known."""
        again = bool(self.sites) and site == self.sites[-1]
        self.row = self.row + 1 if again else 1
        self.regular = self.regular and (again or not self.sites)
        if not (again and self.together):
            self.sites.append(site)
        self.calls += 1
        most = self.row >= min(KEPT, max(ALONE, ROUNDS * (self.calls - self.row)))
        alone = self.regular or (self.together and most)
        self.length = length = 1 if alone else period(self.sites)
        if length is None or length == (self.round.calls if self.round else 1):
            return False
        latest = list(self.sites)[-length:]
        first = first_call(latest)
        self.round = _round(latest[first:] + latest[:first]) if length > 1 else None
        self.since = length - first - 2  # before this call
        if self.round is not None:
            before = latest[-2]
            self._here = len(before) > self.round.depth and before[-1 - self.round.depth] == self.round.first
        return True

    def at_first(self, stack: CallStack) -> bool:
        """Whether the next call, with this stack, is the first of a round."""
        found = self.round
        if found is None:
            return True
        self._there, since = stack.position(found.depth) == found.first, self.since + 1
        return (self._there and not (self._here and since < found.calls)) or since >= LOST * found.calls

    def pass_by(self, *, first: bool) -> None:
        self.since = 0 if first or self.together else self.since + 1
        self._here = self._there


def _round(sites: Sequence[Site]) -> LoopRound:
    """The round of these calls, the first of them first."""
    level = min(_parting(sites), len(sites[0]) - 1)
    return LoopRound(len(sites), len(sites[0]) - 1 - level, sites[0][level])
