"""A whole run's samples divided into the steps and other phases.

While steps were timed, all samples lay below one function, in which the loop of the steps is. What was seen
there is the steps, wherever in the run it is seen again. All else is another phase: named by the function
that it is in where its stack leaves that of the steps, by lines where there is none, or by what torch or
Python does there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from kinetoscope.analysis.passes.samples import LIBRARIES, SampleTree, function_name
from kinetoscope.recording.whole_run import PERIODS, Period, SampledPlace

# A part of the steps may have been missed by samples of them where that is as likely as this, or more.
MISSED = 0.05
STEPS_IN_A_ROW = 2  # what is seen in a row for so many steps is no part of one
# A function of a library's that has this share of its time in one that it calls only passes a call on.
PASSED_ON = 0.9
# What torch or Python does and is a phase by itself wherever it is, or where it is no part of the steps.
IMPORTING, COMPILING, OPTIMIZER = "importing", "compiling", "optimizer"
NAMED = ("loading data", "saving")
# What has no name of its own: it is the line that it is written in.
NAMELESS = re.compile("<(genexpr|listcomp|setcomp|dictcomp|lambda)>$")


class PhasePart(msgspec.Struct):
    seconds: dict[Period, float] = msgspec.field(default_factory=lambda: dict.fromkeys(PERIODS, 0.0))
    samples: int = 0
    stays: int = 0
    longest_s: float = 0.0
    lines: list[int] = msgspec.field(default_factory=list[int])
    nodes: list[int] = msgspec.field(default_factory=list[int])  # the functions that it is
    in_loop: bool = False  # it is below the function of the loop, and may be a part of the steps
    trains: bool = False  # it is steps of another kind

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def later_s(self) -> float:
        return self.total_s - self.seconds["before"]

    def add(self, other: PhasePart) -> None:
        for period in PERIODS:
            self.seconds[period] += other.seconds[period]
        self.samples += other.samples
        self.stays += other.stays
        self.longest_s = max(self.longest_s, other.longest_s)

    def share(self, of: float) -> PhasePart:
        """A part of it, by time."""
        seconds: dict[Period, float] = {period: of * self.seconds[period] for period in PERIODS}
        return PhasePart(seconds, round(of * self.samples), trains=True)

    def take(self, other: PhasePart) -> None:
        for period in PERIODS:
            self.seconds[period] -= other.seconds[period]
        self.samples -= other.samples


def seen_at(tree: SampleTree, node: int, *, alone: bool = False) -> PhasePart:
    own = tree.nodes[node]
    seconds = own.seconds if alone else tree.seconds[node]
    samples = own.samples if alone else tree.samples[node]
    part = PhasePart(dict(zip(PERIODS, seconds, strict=True)), sum(samples))
    if not alone:
        part.stays, part.longest_s = own.stays, own.longest_s
    return part


def path_to_loop(tree: SampleTree, tick: int | None, periods: tuple[Period, ...]) -> list[int]:
    """The path to the function that the loop of the steps is in; empty where steps have none in common."""
    path: list[int] = []
    # What runs at the program's end, while steps may still be timed, is below none of its functions.
    below = [root for root in tree.roots if tree.is_function(root)] if tick is None else tree.path(tick)[:1]
    while True:
        seen = [node for node in below if tree.samples_of([node], periods)]
        ends_here = bool(path) and tree.samples_of([path[-1]], periods) > tree.samples_of(seen, periods)
        if ends_here or len(seen) != 1:
            break
        path.append(seen[0])
        below = tree.children[seen[0]]
    if tick is not None:
        shared = zip(path, tree.path(tick), strict=False)
        path = [one for one, other in shared if one == other]
    while path and not tree.is_function(path[-1]):
        path.pop()
    return path


# A function by its name, file and first line; lines by their function, and where they are.
AMONG_STEPS, BEFORE_STEPS, AFTER_STEPS = -1, -2, -3
A_LINE = -4  # and below: each line by itself, until it is known which of them are of the steps
_Key = tuple[str, str, int]


class RunDivision:
    """Divides a tree into the steps and other parts."""

    def __init__(
        self,
        tree: SampleTree,
        path: list[int],
        periods: tuple[Period, ...],
        evidence: int,
        step_s: float,
        always: frozenset[str] = frozenset(),
    ) -> None:
        self.always = always
        self.tree, self.path, self.periods = tree, path, periods
        self.evidence, self.step_s = evidence, step_s
        self.steps = PhasePart()
        self.in_steps: list[int] = []  # nodes whose own samples are of the steps
        self.parts: dict[_Key, PhasePart] = {(IMPORTING, "", 0): PhasePart(), (COMPILING, "", 0): PhasePart()}
        self.sides: dict[_Key, int] = {}  # of lines by themselves: where they are
        # Functions that the loop calls for a time where its steps call others, and those others.
        self.instead: list[tuple[int, list[int]]] = []
        self.on_path = {tree.nodes[node].place for node in path if tree.is_function(node)}
        # The functions in which the optimizer of the steps is seen to step, which they all have.
        above = set[int]()
        for node in reversed(range(len(tree.nodes))):
            if tree.does(node) in always or node in above:
                above.add(tree.nodes[node].parent)
        self.training = {node for node in above if tree.is_function(node)}
        seen = (node for node in range(len(tree.nodes)) if tree.samples_of([node], periods))
        self.seen = {tree.nodes[node].place for node in seen if tree.is_function(node)}

    def divide(self) -> None:
        on_path = dict(zip(self.path, [*self.path[1:], -1], strict=True))
        for root in self.tree.roots:
            if root not in on_path:
                self._outside(root)
        for node, following in on_path.items():
            if following < 0:
                self._around_the_loop(node)
                continue
            line = self.tree.nodes[following].line
            for child in self.tree.children[node]:
                if child != following:
                    self._outside(child, (line, line))
            if own := seen_at(self.tree, node, alone=True).samples:
                self._add_lines(node, (line, line), self.tree.nodes[node].line, own)
        candidates = {key: part for key, part in self.parts.items() if part.in_loop}
        loop_s = self.steps.later_s + sum(part.later_s for part in candidates.values())
        for key, part in candidates.items():
            if self._is_of_steps(part, loop_s, len(candidates)):
                self.steps.add(self.parts.pop(key))
        for key, side in self.sides.items():
            if (line := self.parts.pop(key, None)) is not None:
                self._into((*key[:2], side), line, in_loop=True)
        self._divide_loop()

    def _divide_loop(self) -> None:
        """Where the loop calls one function for a time and then another one: what is of other steps."""
        if not self.instead:
            return
        others, usual = PhasePart(trains=True), PhasePart()
        for node, _ in self.instead:
            others.add(seen_at(self.tree, node))
        for node in {one for _, siblings in self.instead for one in siblings}:
            usual.add(seen_at(self.tree, node))
        self.steps.take(usual)
        part = others.total_s / (others.total_s + usual.total_s)
        shared = self.steps.share(part)
        self.steps.take(shared)
        self.steps.add(usual)
        others.add(shared)
        self._add_other_steps([node for node, _ in self.instead], others)

    def _add_other_steps(self, known_by: list[int], part: PhasePart, how: str = "with") -> None:
        """Steps of another kind, by their function, or that of most time in place of which the others have
        another one."""
        node = max(known_by, key=lambda one: sum(self.tree.seconds[one]))
        place = self.tree.places[self.tree.nodes[node].place]
        key = (f"steps {how} {function_name(place)}", place.file, place.line)
        self.parts.setdefault(key, PhasePart(trains=True)).add(part)

    def _below_lines(self, node: int) -> Iterator[int]:
        """The nodes that the lines of a function call."""
        for line in self.tree.children[node]:
            yield from self.tree.children[line] if self.tree.place(line) is None else (line,)

    def _called_again(self, again: int) -> None:
        """Another call of the loop's function, in which an optimizer steps as well: it is steps like the
        recorded ones, or, where functions take the place of some that those call, of another kind."""
        tree, part, instead = self.tree, PhasePart(), list[int]()

        def walk(known: int, node: int) -> None:
            part.add(seen_at(tree, node, alone=True))
            same = {self._key(child): child for child in tree.children[known]}
            for child in tree.children[node]:
                usual = same.get(self._key(child), -1)
                if self._apart(child):
                    continue
                if tree.does(child) in self.always or (usual >= 0 and self._timed(usual)):
                    walk(usual, child) if usual >= 0 else part.add(seen_at(tree, child))
                elif tree.is_function(child) and self._functions(tree.children[known]):
                    part.add(seen_at(tree, child))
                    instead.append(child)
                else:
                    for one in self._named(child):
                        self._add(one, seen_at(tree, one), in_loop=True)

        walk(self.path[-1], again)
        replaced_s = sum(sum(tree.seconds[node]) for node in instead)
        if replaced_s and (1 - replaced_s / part.total_s) ** self.evidence < MISSED:
            self._add_other_steps(instead, part)
        else:
            self.steps.add(part)

    def _key(self, node: int) -> tuple[int, int]:
        return self.tree.nodes[node].place, self.tree.nodes[node].line

    def _timed(self, node: int) -> bool:
        return self.tree.samples_of([node], self.periods) > 0

    def _functions(self, nodes: list[int]) -> list[int]:
        """The functions among nodes that steps were seen in."""
        return [node for node in nodes if self.tree.is_function(node) and self._timed(node)]

    def _is_of_steps(self, part: PhasePart, loop_s: float, of: int) -> bool:
        """Whether a part that no sample of the steps shows is one of theirs all the same: it is so small that
        they may have missed one like it of so many, and it is not seen in a row for longer than a step."""
        share = part.later_s / loop_s if loop_s > 0 else 0.0
        in_a_row = part.samples >= 4 and part.samples >= 2 * part.stays > 0
        longer = in_a_row and part.longest_s > STEPS_IN_A_ROW * self.step_s
        missed = (1 - min(1.0, share)) ** self.evidence
        return part.later_s > 0 and not longer and missed >= MISSED / of

    def _around_the_loop(self, loop: int) -> None:
        tree = self.tree
        seen = [child for child in tree.children[loop] if tree.samples_of([child], self.periods)]
        lines = [tree.nodes[child].line for child in seen if tree.place(child) is None]
        extent = (min(lines), max(lines)) if lines else (0, 1 << 53)
        self._count(loop)
        for child in tree.children[loop]:
            if extent[0] <= tree.nodes[child].line <= extent[1]:
                self._in_steps(child)
            else:
                self._outside(child, extent, in_loop=True)

    def _in_steps(self, node: int) -> None:
        if not self._apart(node):
            at = [node, *(self.tree.children[node] if self.tree.place(node) is None else ())]
            always = any(self.tree.does(one) in self.always for one in at)
            if not always and not self._timed(node):
                if usual := self._instead_of(node):
                    self.instead.append((node, usual))
                    return
                for child in self._named(node):
                    self._add(child, seen_at(self.tree, child), in_loop=True)
                return
            self._count(node)
            for child in self.tree.children[node]:
                self._in_steps(child)

    def _instead_of(self, node: int) -> list[int]:
        """The functions that steps call at the line at which a function was called, if it came only once they
        did not come any more, or before, and the optimizer went on."""
        if not self.always or not self.tree.is_function(node) or self.tree.nodes[node].parent < 0:
            return []
        one = self.tree.nodes[node]
        usual = self._functions(self.tree.children[one.parent])
        first_s = min((self.tree.nodes[other].first_s for other in usual), default=0.0)
        last_s = max((self.tree.nodes[other].last_s for other in usual), default=0.0)
        apart = one.first_s > last_s > 0 or 0 < one.last_s < first_s
        return usual if apart else []

    def _count(self, node: int) -> None:
        """Count what was seen at a node itself to the steps."""
        self.steps.add(seen_at(self.tree, node, alone=True))
        self.in_steps.append(node)

    def _named(self, node: int) -> Iterator[int]:
        """The functions that a line calls, if it does nothing else of note; else the node itself."""
        below = self.tree.children[node] if self.tree.place(node) is None else []
        functions = [child for child in below if self.tree.is_function(child)]
        whole, called = seen_at(self.tree, node), [seen_at(self.tree, child) for child in functions]
        if functions and sum(part.samples for part in called) == whole.samples:
            yield from functions
        else:
            yield node

    def _outside(self, node: int, extent: tuple[int, int] = (0, 0), *, in_loop: bool = False) -> None:
        """Divide what is no part of the steps; below the function of the loop it is called from other lines
        than those of the steps."""
        if self._apart(node):
            return
        if node in self.training:
            if self.tree.nodes[node].place == self.tree.nodes[self.path[-1]].place:
                self._called_again(node)
                return
            if any(self.tree.does(below) in self.always for below in self._below_lines(node)):
                self._add_other_steps([node], seen_at(self.tree, node), "of")
                return
        if self.tree.is_function(node) and self.tree.nodes[node].place in self.on_path:
            # It runs whatever it is given: a timer, a retry; what it was given names the phase.
            for child in self.tree.children[node]:
                line = self.tree.nodes[child].line
                self._outside(child, (line, line), in_loop=in_loop)
            return
        if self.tree.place(node) is not None:
            self._add(node, seen_at(self.tree, node), in_loop=in_loop)
            return
        function, line = self.tree.nodes[node].parent, self.tree.nodes[node].line
        rest = seen_at(self.tree, node, alone=True)
        for child in self.tree.children[node]:
            named = self.tree.is_function(child) and not (in_loop and self._is_seen(child))
            if named or self.tree.does(child) in NAMED:
                self._outside(child, extent, in_loop=in_loop)
            elif not self._apart(child):
                rest.add(seen_at(self.tree, child))
        self._add_lines(function, extent, line, rest.samples, rest, in_loop=in_loop)

    def _is_seen(self, node: int) -> bool:
        return self.tree.nodes[node].place in self.seen

    def _apart(self, node: int) -> bool:
        """Take out what imports or compiles, wherever it is; True where that is all of the node."""
        does = self.tree.does(node)
        if does in (IMPORTING, COMPILING):
            self.parts[does, "", 0].add(seen_at(self.tree, node))
            return True
        return False

    def _add(self, node: int, part: PhasePart, *, in_loop: bool) -> None:
        place, does = self.tree.place(node), self.tree.does(node)
        if place is None:
            function = self.tree.nodes[node].parent
            line = self.tree.nodes[node].line
            self._add_lines(function, (line, line), line, part.samples, part, in_loop=in_loop)
            return
        if NAMELESS.search(place.name) and self.tree.nodes[node].parent >= 0:
            self._add(self.tree.nodes[node].parent, part, in_loop=in_loop)
            return
        if not does and self._hands_on(node):
            own = list(self._authors_below(node))
            if sum(sum(self.tree.seconds[one]) for one in own) >= PASSED_ON * part.total_s > 0:
                for one in own:
                    self._add(one, seen_at(self.tree, one), in_loop=in_loop)
                    part.take(seen_at(self.tree, one))
            if LIBRARIES.match(place.file):
                place = self._known_by(node, place)
        key = (function_name(place), place.file, place.line)
        if does:
            around = self.tree.function_of(node)
            outer = self.tree.place(around) if around >= 0 else None
            key = (does, outer.file, outer.line) if outer else (does, "", 0)
        part.nodes.append(node)
        self._into(key, part, in_loop=in_loop)

    def _authors_below(self, node: int) -> Iterator[int]:
        """The outermost functions of the author's that a library's calls: handlers, a loop's own methods."""
        for child in self.tree.children[node]:
            place = self.tree.place(child)
            if place is None or (place.file and self._hands_on(child)):
                yield from self._authors_below(child)
            elif place.file and not self._is_seen(child):
                yield child

    def _hands_on(self, node: int) -> bool:
        """Whether a function is a library's, or made by one that has returned, as a decorator's is."""
        place = self.tree.places[self.tree.nodes[node].place]
        maker, made, _ = place.name.rpartition(".<locals>.")
        around = (self.tree.place(one) for one in self.tree.path(node))
        made_here = any(one and (one.file, one.name) == (place.file, maker) for one in around)
        return bool(LIBRARIES.match(place.file)) or (bool(made) and not made_here)

    def _known_by(self, node: int, place: SampledPlace) -> SampledPlace:
        """The function that a phase in a library is known by: the innermost that nearly all of it is in. The
        library's hooks, and wrappers of its decorators, only pass the call on, and their names say little to
        whoever wrote the program."""
        enough = PASSED_ON * sum(self.tree.seconds[node])
        nodes = [node]
        while True:
            called: dict[int, list[int]] = defaultdict(list)
            for line in (child for one in nodes for child in self.tree.children[one]):
                for child in (line, *self.tree.children[line]):
                    inner = self.tree.place(child)
                    if inner is not None and LIBRARIES.match(inner.file) and not self._is_seen(child):
                        called[self.tree.nodes[child].place].append(child)
            for number, nodes in called.items():
                if sum(sum(self.tree.seconds[one]) for one in nodes) >= enough:
                    place = self.tree.places[number]
                    break
            else:
                return place

    def _add_lines(
        self,
        function: int,
        extent: tuple[int, int],
        line: int,
        samples: int,
        part: PhasePart | None = None,
        *,
        in_loop: bool = False,
    ) -> None:
        """A line of a function: before the ``extent`` of those of the steps, among them or after them."""
        node = self.tree.function_of(function)
        place = self.tree.place(node) if node >= 0 else None
        if place is None or not samples:
            return
        side = BEFORE_STEPS if line < extent[0] else AFTER_STEPS if line > extent[1] else AMONG_STEPS
        part = seen_at(self.tree, function, alone=True) if part is None else part
        part.lines.append(line)
        key = (function_name(place), place.file, A_LINE - line if in_loop else side)
        if in_loop:
            self.sides[key] = side
        self._into(key, part, in_loop=in_loop)

    def _into(self, key: _Key, part: PhasePart, *, in_loop: bool) -> None:
        known = self.parts.setdefault(key, PhasePart(in_loop=in_loop))
        known.add(part)
        known.lines += part.lines
        known.nodes += part.nodes
