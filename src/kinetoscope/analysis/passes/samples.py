"""The samples of a process's thread as a tree with sums, and what its functions are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from kinetoscope.recording.whole_run import PERIODS, Period, SampledPlace, WholeRun

LIBRARIES = re.compile(r".*[/\\\\](?:site|dist)-packages[/\\\\]")


class SampleTree:
    """The samples' tree, with what is below each node; what imports and compiles is taken out."""

    def __init__(self, watched: WholeRun) -> None:
        self.nodes, self.places = watched.nodes, watched.places
        self.children: list[list[int]] = [[] for _ in self.nodes]
        self.roots: list[int] = []
        self.seconds = [list(node.seconds) for node in self.nodes]  # with all that is below
        self.samples = [list(node.samples) for node in self.nodes]
        for number, node in enumerate(self.nodes):
            (self.roots if node.parent < 0 else self.children[node.parent]).append(number)
        for number, node in reversed(list(enumerate(self.nodes))):
            if node.parent >= 0:
                seconds, samples = self.seconds[node.parent], self.samples[node.parent]
                for at in range(len(PERIODS)):
                    seconds[at] += self.seconds[number][at]
                    samples[at] += self.samples[number][at]

    def place(self, node: int) -> SampledPlace | None:
        """The function that a node is, or what is done there; None of a line."""
        number = self.nodes[node].place
        return None if number < 0 else self.places[number]

    def does(self, node: int) -> str:
        """The name of what torch or Python does at a node; empty at others."""
        place = self.place(node)
        return place.name if place is not None and not place.file else ""

    def is_function(self, node: int) -> bool:
        place = self.place(node)
        return place is not None and bool(place.file)

    def function_of(self, node: int) -> int:
        """The function that a node is, or is in; -1: none."""
        while node >= 0 and not self.is_function(node):
            node = self.nodes[node].parent
        return node

    def name_of(self, node: int) -> str:
        """``evaluate (train.py:88)``."""
        place = self.place(node)
        return "" if place is None else f"{function_name(place)} ({where_it_is(place)})"

    def samples_of(self, nodes: Iterable[int], periods: Iterable[Period]) -> int:
        places = [PERIODS.index(period) for period in periods]
        return sum(self.samples[node][place] for node in nodes for place in places)

    def stepping(self) -> set[int]:
        """The places that were on the stack while steps settled or were timed."""
        seen = (node for node in range(len(self.nodes)) if self.samples_of([node], ("settling", "timed")))
        return {self.nodes[node].place for node in seen} - {-1}

    def path(self, node: int) -> list[int]:
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]


def function_name(place: SampledPlace) -> str:
    """A function's name as its author knows it; of a module's own code, the file's."""
    name = place.name.rpartition("<locals>.")[2]
    return PurePath(place.file).name if name == "<module>" else name


def where_it_is(place: SampledPlace) -> str:
    """``train.py:88``; a library's file by its path in the library, which may be named as the author's is."""
    library = LIBRARIES.match(place.file)
    file = place.file[library.end() :].replace("\\", "/") if library else PurePath(place.file).name
    return f"{file}:{place.line}"
