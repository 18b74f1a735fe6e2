"""The loops that a call of the program is made in, read from the bytecode of the functions on its stack.

Where a loop begins and ends in a function's instructions says which calls are made in one pass of it: those
whose stack has the function at an instruction between the two. No function is called or changed for that.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kinetoscope.capture import cells

# An instruction of a function that runs: the identity of its code, and the instruction's offset in it.
Position = tuple[int, int]
# The functions on the stack of a call, outermost first, without those of torch and of kinetoscope.
Site = tuple[Position, ...]

LIBRARY = os.path.dirname(os.__file__) + os.sep  # where Python's own library lies

# Two passes of a loop in a row are similar where their numbers of calls differ by this factor at most,
SIMILAR = 2
FEWEST = 2  # and each has so many
# After so many calls in one loop without any other a pass of a loop around it is no more waited for.
UNSHOWN = 24


class Loop(NamedTuple):
    above: Site  # the functions around the one that it is in
    code: int  # the identity of that one's code
    # first, last: the offsets of its first and last instruction
    first: int
    last: int
    where: str  # ``train.py:40``
    calls: str  # the function that its body has called; empty: none on the stack
    pythons: bool = False  # it is in Python's own library, as that in which a server waits for a request

    def holds(self, site: Site) -> bool:
        """Whether a call from there is made in a pass of this loop."""
        depth = len(self.above)
        if len(site) <= depth or site[:depth] != self.above:
            return False
        code, at = site[depth]
        return code == self.code and self.first <= at <= self.last


def loops_around(stack: Sequence[tuple[CodeType, int]]) -> list[Loop]:
    """The loops around a call, the outermost first; the stack, likewise, has the code of each function on it,
    and the offset of its instruction."""
    found: list[Loop] = []
    site: Site = ()
    for depth, (code, at) in enumerate(stack):
        called = [inner for inner, _ in stack[depth + 1 :]]
        file = os.path.basename(cells.named(code.co_filename))
        if _is_python_s(code):  # as the loop of a thread pool, which calls the program's function by its own
            file = code.co_filename[len(LIBRARY) :]
            called = [inner for inner in called if not _is_python_s(inner)] or called
        calls = getattr(called[0], "co_qualname", called[0].co_name) if called else ""
        found += [
            Loop(site, id(code), first, last, f"{file}:{line}", calls, _is_python_s(code))
            for first, last, line in _loops_of(code)
            if first <= at <= last
        ]
        site = (*site, (id(code), at))
    return found


def _is_python_s(code: CodeType) -> bool:
    path = code.co_filename
    return path.startswith(LIBRARY) and "site-packages" not in path and "dist-packages" not in path


# Reading a function's instructions takes a millisecond, and some calls are asked about in each step.
_KNOWN: WeakKeyDictionary[CodeType, list[tuple[int, int, int]]] = WeakKeyDictionary()


def _loops_of(code: CodeType) -> list[tuple[int, int, int]]:
    """The loops of a function, the longest first: first and last offset, and the line that it begins at."""
    if code not in _KNOWN:
        _KNOWN[code] = sorted(_read_loops(code), key=lambda loop: loop[0] - loop[1])
    return _KNOWN[code]


# After one of these the next instruction is not executed, unless something jumps there.
LEAVES = (
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_FORWARD",
    "RAISE_VARARGS",
    "RERAISE",
    "RETURN_CONST",
    "RETURN_VALUE",
)


def _read_loops(code: CodeType) -> Iterator[tuple[int, int, int]]:
    lines = [(start, end, line) for start, end, line in code.co_lines() if line is not None]
    instructions = list(dis.get_instructions(code))
    usual = _without_exceptions(instructions)
    ends: dict[int, int] = {}
    for one in instructions:
        # An await jumps back to where it waits, which is no loop of the program's; nor is one what follows a
        # `with` or `try`, though CPython 3.12 has its handlers at the function's end jump back to it.
        awaits = one.opname.endswith("NO_INTERRUPT")
        handled = one.offset not in usual
        if _jumps(one) and one.argval < one.offset and not awaits and not (handled and one.argval in usual):
            ends[one.argval] = max(ends.get(one.argval, 0), one.offset)
    for first, last in ends.items():
        known = [line for start, end, line in lines if start <= first < end or start <= last < end]
        yield first, last, min(known, default=code.co_firstlineno)


def _jumps(one: dis.Instruction) -> bool:
    return one.opcode in dis.hasjrel or one.opcode in dis.hasjabs


def _without_exceptions(instructions: Sequence[dis.Instruction]) -> set[int]:
    """The offsets of the instructions that may be executed where nothing is raised."""
    places = {one.offset: place for place, one in enumerate(instructions)}
    reached, left = set[int](), [0]
    while left:
        one = instructions[place] if (place := left.pop()) < len(instructions) else None
        if one is not None and one.offset not in reached:
            reached.add(one.offset)
            left += [places.get(one.argval, len(instructions))] if _jumps(one) else []
            left += [] if one.opname in LEAVES else [place + 1]
    return reached


class OuterLoop:
    """Looks whether the passes of a loop are longer steps than the calls that a loop inside of it makes.

    A pipeline's loop over time steps calls its network twenty times to each picture: it is in a function
    that the loop over pictures calls. Another call in the outer loop's body and outside the inner one (a
    decoder, a value that is read, a batch that is taken) shows where one pass ends; without any, the inner
    loop has the steps. Loops of one function are an epoch and its batches, as are calls that a data loader
    feeds: each is a step.

    Args:
        around: the loops around the calls, the outermost first.
        loads: grows where the program takes a batch from a data loader.
    """

    def __init__(self, around: Sequence[Loop], loads: Callable[[], int] = lambda: 0) -> None:
        while around and around[-1].pythons:  # the call is not repeated in it
            around = around[:-1]
        self.inner = around[-1] if around else None
        outside = [loop for loop in around if len(loop.above) < len(around[-1].above)] if around else []
        self.loop = outside[-1] if outside else None
        # it may still be found that they are; they are
        self.looking, self.found = self.loop is not None, False
        self.calls = self.passes = 0  # calls of the latest whole pass
        self.shown_by: set[str] = set()  # the watches that see the other calls that show where a pass ends
        self.ended = False
        self.seen = 0  # calls so far
        self._now = self._fed = 0
        self._loads, self._loaded = loads, loads()

    def called_elsewhere(self, kind: str, site: Callable[[], Site]) -> None:
        if (self.looking or self.found) and not self.ended and self.loop and self.inner:
            place = site()
            if self.loop.holds(place) and not self.inner.holds(place):
                self.ended = True
                self.shown_by.add(kind)

    @property
    def undecided(self) -> bool:
        """Whether the next calls may show it: passes have ended, or few calls were seen so far."""
        return self.looking and (self.passes > 0 or self.seen < UNSHOWN)

    def called(self) -> bool:
        """A call in the inner loop: whether it is the first of a pass of the outer one."""
        first, self.ended = self.ended, False
        if not self.looking:
            self._now = 1 if first else self._now + 1
            return first
        self.seen += 1
        loaded, self._loaded = self._loaded, self._loads()
        self._fed += self._loaded != loaded
        if first:
            self.passes += 1
            if self.passes > 2:  # the first that was seen may have begun before
                fewest, most = sorted((self.calls, self._now))
                similar = fewest >= FEWEST and most <= SIMILAR * fewest
                self.found, self.looking = similar and 2 * self._fed < self._now, False
            self.calls, self._now, self._fed = self._now, 0, 0
        self._now += 1
        return first

    def stop(self) -> None:
        self.looking = self.found = False
