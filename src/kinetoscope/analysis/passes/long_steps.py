"""The function, or line of the loop, that rare long steps are about, by the samples of the whole run.

The clock of the steps says how many are long, and by how much; samples say where the thread was, but not in
which step. The function that long steps are about is seen in a row for as long as a long step takes more, no
more often than those come, and takes of all steps about what they add. A function in which a step begins or
ends, or from which a backward pass or an optimizer is called, is in the usual steps as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kinetoscope.analysis.passes.samples import LIBRARIES, SampleTree, function_name, where_it_is
from kinetoscope.analysis.passes.thread_lines import LOADING
from kinetoscope.analysis.passes.unprofiled import Unprofiled
from kinetoscope.recording.whole_run import PERIODS

# Of what long steps take more: so much a function has to be seen, in a row and in all. By samples neither is
# exact, nor is the number of long steps by the few that were timed.
HALF, TWICE = 0.5, 2.0
# Samples in a row, at the mean: a call that is shorter than the distance between two is seen once.
IN_A_ROW = 1.5
PASSED_ON = 0.9  # a function that has this share of its time in one that it calls only passes the call on
IN_EACH_STEP = frozenset({"backward", "optimizer"})


class LongSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the rare long steps are about."""

    # ``save_checkpoint``, the program's own where most passes in one; else a library's. The loop's where it
    # is a line of the loop itself
    function: str
    where: str  # ``train.py:80``, where it begins, of a library ``library/file.py:80``; or that line
    # what torch or Python does there for at least half of its time, such as ``saving``; empty where that is
    # none of what is known
    does: str
    # count, of: how many of the timed steps are long, as ``as_it_runs.rare_steps`` has them
    count: int
    of: int
    more_us: float  # what a long step takes more than the others, at the mean
    step_us: float  # the function's time for each step of the run, at the mean
    times: int  # how often it was seen to run
    called: str = ""  # of a library's function: the program's line that leads to it, ``train.py:34``
    is_line: bool = False  # a line of the loop itself, at which each pass of it may arrive

    @property
    def title(self) -> str:
        """``save_checkpoint (train.py:80)``; ``line 80 of train (train.py)``, of a script ``of train.py``."""
        file, _, line = self.where.rpartition(":")
        title = f"{self.function} ({self.where})"
        if self.is_line:
            title = f"line {line} of {self.function}{f' ({file})' if file != self.function else ''}"
        return f"{title}, called at {self.called}" if self.called else title

    @property
    def at(self) -> str:
        """The program's place to look at: that line, or the function."""
        return self.called or self.where


def long_steps(
    tree: SampleTree, loop: int, nodes: Iterable[int], timed: Unprofiled | None, tick: int | None
) -> LongSteps | None:
    """The function that long steps are about; None where there are none, or no function is. ``loop``: the
    node of the function that the steps' loop is in; ``nodes``: where samples of steps were taken; ``timed``:
    the steps without the profiler; ``tick``: the node at which a step begins or ends."""
    rare = timed.rare if timed is not None else None
    if timed is None or rare is None or rare.size > 1:
        return None
    later = range(1, len(PERIODS))  # before steps were known nothing was timed
    of_steps = set(nodes)
    marks = [node for node in range(len(tree.nodes)) if tree.does(node) in IN_EACH_STEP]
    marks += [] if tick is None else [tick]
    usual = {node for mark in marks for node in tree.path(mark)}  # on the way to what every step does
    steps_s = sum(tree.nodes[node].seconds[place] for node in of_steps for place in later)
    more_s = 1e-6 * rare.more_us
    steps = 1e6 * steps_s / timed.mean_us

    def each_us(node: int) -> float:
        return 1e6 * _later_s(tree, node) / steps

    def is_it(node: int) -> bool:
        stays, samples = tree.nodes[node].stays, sum(tree.samples[node])
        if not stays or not HALF <= each_us(node) / rare.extra_us <= TWICE:
            return False
        in_a_row_s = sum(tree.seconds[node]) / stays
        often = stays > TWICE * steps * rare.count / rare.of + 1
        return samples >= IN_A_ROW * stays and in_a_row_s >= HALF * more_s and not often

    below, candidates = list(tree.children[loop]), list[int]()
    while below and steps > 0:
        node = below.pop()
        if tree.is_function(node) and node in of_steps and node not in usual and is_it(node):
            candidates.append(node)
        elif tree.does(node) != LOADING:  # steps that are long for their batches are known by their waiting
            below += tree.children[node]
    # Lines of the loop are those of usual steps as well, unless it is known what these are.
    lines = [node for node in tree.children[loop] if _does(tree, node) != LOADING] if usual else []
    in_loop = [node for node in lines if node in of_steps and node not in usual and is_it(node)]
    if not (candidates := candidates or in_loop):
        return None
    found = max(candidates, key=lambda node: _later_s(tree, node))
    place, is_line = tree.place(_known_by(tree, found)), False
    if place is None and (around := tree.place(loop)) is not None:
        place, is_line = msgspec.structs.replace(around, line=tree.nodes[found].line), True
    assert place is not None
    return LongSteps(
        function=function_name(place),
        where=where_it_is(place),
        does=_does(tree, found),
        count=rare.count,
        of=rare.of,
        more_us=1e6 * more_s,
        step_us=each_us(found),
        times=tree.nodes[found].stays,
        called=_called_at(tree, found) if LIBRARIES.match(place.file) else "",
        is_line=is_line,
    )


def _later_s(tree: SampleTree, node: int) -> float:
    return sum(tree.seconds[node][1:])


def _known_by(tree: SampleTree, node: int) -> int:
    """The innermost function of the program's (else a library's) with nearly all of a function's time."""
    enough = PASSED_ON * _later_s(tree, node)
    chain, below = [node], tree.children[node]
    while below:
        inner = max(below, key=lambda one: _later_s(tree, one))
        if _later_s(tree, inner) < enough:
            break
        if tree.is_function(inner):
            chain.append(inner)
        below = tree.children[inner]
    places = [(one, tree.place(one)) for one in chain]
    own = [one for one, place in places if place is not None and not LIBRARIES.match(place.file)]
    return (own or chain)[-1]


def _called_at(tree: SampleTree, node: int) -> str:
    """The innermost line of the program's own that leads to a node; empty: all is a library's."""
    for one in reversed(tree.path(node)):
        place = tree.place(tree.function_of(one))
        if (line := tree.nodes[one].line) and place is not None and not LIBRARIES.match(place.file):
            return where_it_is(msgspec.structs.replace(place, line=line))
    return ""


def _does(tree: SampleTree, node: int) -> str:
    below, seconds = [node], dict[str, float]()
    while below:
        one = below.pop()
        if does := tree.does(one):
            seconds[does] = seconds.get(does, 0.0) + _later_s(tree, one)
        else:
            below += tree.children[one]
    most = max(seconds, key=seconds.__getitem__, default="")
    return most if most and seconds[most] >= HALF * _later_s(tree, node) else ""
