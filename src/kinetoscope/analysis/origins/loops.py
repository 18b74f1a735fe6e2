"""Loops of the step with lines whose passes need nothing of each other, by the program's own source.

A pass needs another where it reads a name before it binds it, and binds it as well (``x = layer(x)``), writes
into what it also reads (``h[i] = cell(h[i - 1])``), or calls what goes on from where it was (``backward``,
``next``, a cache). The lines of functions that a pass calls are read as well; what libraries keep is not
seen. The state of a recurrent net is no such name, where nothing else reads it: one call goes through all
passes' inputs. Nor is a name that is bound to what is known before the loop, such as the word before.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import polars as pl
from msgspec import Struct, field

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import (
    AS_OBJECT,
    GIVES_NEW,
    WRITES,
    FileLine,
    Function,
    Located,
    NotedLine,
    ProgramFile,
    ProgramFiles,
    first_of,
    last_name,
    noted_lines,
    program_files,
    stores,
)
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

COMPREHENSION = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
Loop = ast.For | Comprehension
# Calls of what goes on from where the pass before left it.
GOES_ON = re.compile(r"backward|step|zero_grad|next|send|recv|reset|pop|popleft|remove|clear")
KEEPS = re.compile(rf"{GIVES_NEW.pattern}|cache|past|(^|_)kv($|_)|optimizer|scheduler")
PARAMETERS = re.compile("parameters|buffers|weights|grads|state_dict")
RECURRENT = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$"
PASSES = 8  # each time that a loop is entered: of fewer much remains when they are one
ADDS = (ast.Add, ast.Sub, ast.BitOr, ast.BitAnd)

SCHEMA = {
    "lane": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "line": pl.String,
    "inner": pl.String,
    "passes": pl.Int64,
    "share": pl.Float64,
    "sort": pl.String,
    "function": pl.String,
}


class _Nest(NamedTuple):
    """A row of the table: see ``independent_loops``."""

    lane: int
    start_ns: int
    end_ns: int
    line: str
    inner: str | None
    passes: int
    share: float
    sort: str
    function: str


class _Entering(Struct, eq=False):
    """A loop that is entered: from which to which of the noted lines, and when its passes began."""

    loop: Loop
    line: FileLine
    function: Function | None
    lane: int
    outer: _Entering | None
    first: int
    began_ns: int
    last: int = 0
    ended_ns: int = 0
    header_ns: int = 0
    in_body: bool = False
    passes: list[int] = field(default_factory=list[int])


class _Frame(Struct, eq=False):
    function: Function | None
    loops: list[_Entering] = field(default_factory=list[_Entering])


@remembered
def independent_loops(run: LoadedRun) -> Mapping[int, pl.DataFrame]:
    """By rank whose lines were noted, each time that the step entered such loops, of eight passes or more:
    ``lane``, ``start_ns``, ``end_ns``; the ``line`` of the outermost one (``train.py:12``), and that of the
    ``inner`` one with more passes; the number of ``passes`` in which ops ran; the ``share`` of the ops that
    are not one pass's; and the ``sort``: whether each pass calls ``modules`` of its own, or a recurrent net
    with the state of the one before (``sequence``), or the loop goes through ``parameters`` or ``items``; and
    the ``function`` that it is in, by its file and line."""
    return {
        rank: pl.DataFrame(list(_of_step(noted, program_files(run))), SCHEMA, orient="row")
        for rank, noted in run.lines.items()
    }


def _of_step(noted: Trace, sources: ProgramFiles) -> Iterator[_Nest]:
    rows = noted_lines(noted)
    entered = list(_entered(rows, sources))
    host = noted.host_events
    ops = host.filter(matching(host, "category", "^cpu_op$")).sort("start_ns")
    times = {lane: of["start_ns"].to_list() for (lane,), of in ops.group_by("lane", maintain_order=True)}
    by_loop = defaultdict[Loop, list[_Entering]](list)
    for one in entered:
        by_loop[one.loop].append(one)
    recurrent = _recurrent(noted, rows)
    alone = dict[Loop, bool]()
    sequences = set[Loop]()
    nests = defaultdict[_Entering, list[_Entering]](list)
    root = dict[_Entering, _Entering]()
    for one in sorted(entered, key=lambda one: (one.first, -one.last)):
        same, around = by_loop[one.loop], None if one.outer is None else root.get(one.outer)
        if one.loop not in alone:
            again = any(_working(other, times.get(other.lane, ())) > 1 for other in same)
            dependence = _Dependence(same, rows, sources, recurrent)
            alone[one.loop] = again and dependence.none
            if dependence.states:
                sequences.add(one.loop)
        if around is not None:
            root[one] = around
            if alone[one.loop] and one.outer in nests[around]:
                nests[around].append(one)
        elif alone[one.loop]:
            root[one] = one
            nests[one].append(one)
    for outermost, levels in nests.items():
        row = _row(outermost, levels, times.get(outermost.lane, ()), sequences)
        if row.passes >= PASSES:
            yield row


def _recurrent(noted: Trace, rows: Sequence[NotedLine]) -> set[FileLine]:
    """The lines that call a recurrent net of torch."""
    lines = [(row.start_ns, row.line) for row in rows if row.line is not None]
    begins = [at_ns for at_ns, _ in lines]
    calls = noted.host_events.filter(matching(noted.host_events, "name", RECURRENT))["start_ns"]
    places = [bisect_right(begins, at_ns) for at_ns in calls.to_list()]
    return {lines[place - 1][1] for place in places if place}


def _row(
    outermost: _Entering, levels: Sequence[_Entering], times: Sequence[int], sequences: Collection[Loop]
) -> _Nest:
    passes = Counter[Loop]()
    for one in levels:
        passes[one.loop] += _working(one, times)
    kept = 0.0
    for one in levels:
        own = _ops(one, times) - sum(_ops(inner, times) for inner in levels if inner.outer is one)
        kept += own / passes[one.loop] if passes[one.loop] >= PASSES else own
    many = [one for one in levels if passes[one.loop] >= PASSES] or levels
    most = max(many, key=lambda one: passes[one.loop])
    named = [f"{one.line.file.rpartition('/')[2]}:{one.line.number}" for one in (many[0], most)]
    return _Nest(
        outermost.lane,
        outermost.began_ns,
        outermost.ended_ns,
        named[0],
        named[1] if most.loop is not many[0].loop else None,
        passes[most.loop],
        1 - kept / max(1, _ops(outermost, times)),
        "sequence" if any(one.loop in sequences for one in many) else _sort(most.loop),
        f"{outermost.line.file}:{outermost.function.lineno if outermost.function else ''}",
    )


def _ops(one: _Entering, times: Sequence[int]) -> int:
    return bisect_left(times, one.ended_ns) - bisect_left(times, one.began_ns)


def _working(one: _Entering, times: Sequence[int]) -> int:
    places = [bisect_left(times, at_ns) for at_ns in (*one.passes, one.ended_ns)]
    return sum(later > place for place, later in pairwise(places))


def _sort(loop: Loop) -> str:
    over = _over(loop)
    items = _names(over.target)
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in items:
                return "modules"
            if isinstance(called, ast.Subscript) and _names(called.slice) & items:
                return "modules"
    return "parameters" if PARAMETERS.search(ast.unparse(over.iter)) else "items"


def _entered(rows: Sequence[NotedLine], sources: ProgramFiles) -> Iterator[_Entering]:
    """The loops that the step enters, with their passes, in the order in which they end."""
    frames, since_ns = [_Frame(None)], -1
    # A line goes on where it calls a module and where that returns.
    modules = {at_ns for row in rows if row.line is None for at_ns in (row.start_ns, row.end_ns)}

    def close(frame: _Frame, place: int, number: int, at_ns: int) -> Iterator[_Entering]:
        ended = frame.loops[place:]
        del frame.loops[place:]
        for one in reversed(ended):
            one.last, one.ended_ns = number, at_ns
            loop = one.loop
            on_one_line = isinstance(loop, COMPREHENSION) and _item(loop).lineno == _over(loop).target.lineno
            if on_one_line and one.passes:
                one.ended_ns = one.passes.pop()  # where it found that nothing is left
            yield one

    known = dict[FileLine, _KnownLine | None]()
    for number, (lane, start_ns, _, line, called) in enumerate(rows):
        if line is None:
            continue
        if line not in known:
            known[line] = _line(sources.located(line))
        if (at := known[line]) is None:
            continue
        function = at.function
        goes_on = start_ns in modules or since_ns in modules
        since_ns = start_ns
        running = [frame.function for frame in frames]
        if function in running:
            keeps = len(running) - running[::-1].index(function)
            goes_on |= keeps < len(frames)
        elif function is not None and at.starts:
            if frames[-1].loops and not _calls(frames[-1].loops[-1].loop, function):
                yield from close(frames[-1], len(frames[-1].loops) - 1, number, start_ns)
            frames.append(_Frame(function))
            keeps = len(frames)
        else:  # back in one that called these before the step
            keeps = 0
        for frame in reversed(frames[keeps:]):
            yield from close(frame, 0, number, start_ns)
        frames[keeps:] = [] if keeps else [_Frame(function)]
        loops = frames[-1].loops
        inside = [_is_in(one.loop, line, at) for one in loops]
        if not all(inside):
            yield from close(frames[-1], inside.index(False), number, start_ns)
        now = loops[-1] if loops else None
        entered = at.loop
        if isinstance(entered, ast.For) and now is not None and now.loop is entered:
            if now.in_body:
                now.header_ns, now.in_body = start_ns, False
            continue
        if now is not None and isinstance(now.loop, ast.For) and not now.in_body:
            now.passes.append(now.header_ns)
            now.in_body = True
        if entered is None:
            continue
        if now is None or now.loop is not entered:
            outer = next((frame.loops[-1] for frame in reversed(frames) if frame.loops), None)
            line = FileLine(line.file, entered.lineno)
            now = _Entering(entered, line, function, lane, outer, number, start_ns, header_ns=start_ns)
            loops.append(now)
            goes_on = isinstance(entered, ast.For)
        if isinstance(entered, ast.GeneratorExp):  # what it hands out is used outside of it
            goes_on |= not str(called).endswith("<genexpr>")
        if isinstance(entered, COMPREHENSION) and not goes_on and line.number == _item(entered).lineno:
            # Until Python 3.11 it is a function of its own, before which what it goes through is made.
            in_body = str(called).endswith("comp>")
            if in_body and not now.in_body:
                now.passes.clear()
            now.in_body = in_body
            now.passes.append(start_ns)
    for frame in reversed(frames):
        yield from close(frame, 0, len(rows), rows[-1].end_ns if rows else 0)


def _calls(loop: Loop, function: Function) -> bool:
    """Whether what a loop goes through may be what calls a function, not the statement that it stands in."""
    if isinstance(loop, ast.For):
        return True
    items = [_item(loop), *([loop.value] if isinstance(loop, ast.DictComp) else [])]
    nodes = [node for item in items for node in ast.walk(item)]
    called = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return bool(called) if function.name in AS_OBJECT else function.name in called


class _KnownLine(Struct, eq=False):
    """A line of a function: whether the function ``starts`` there, or goes on as a generator; the ``loop``
    that it is the header of, or the only comprehension of its statement, over one thing."""

    function: Function | None
    starts: bool
    loop: Loop | None


def _line(located: Located) -> _KnownLine | None:
    source, statement, function = located
    if source is None or statement is None:
        return None
    starts = function is not None and (statement is first_of(function) or function in source.resumed)
    if isinstance(statement, ast.For):
        return _KnownLine(function, starts, statement)
    found = [node for node in source.parts[statement] if isinstance(node, COMPREHENSION)]
    # Of those in each other the outermost goes through all.
    is_one = bool(found) and all(len(one.generators) == 1 for one in found)
    is_one = is_one and all(inner in ast.walk(outer) for outer, inner in pairwise(found))
    return _KnownLine(function, starts, found[0] if is_one else None)


def _is_in(loop: Loop, line: FileLine, at: _KnownLine) -> bool:
    if isinstance(loop, ast.For):
        return loop.lineno <= line.number <= (loop.body[-1].end_lineno or loop.lineno)
    return at.loop is loop


def _over(loop: Loop) -> ast.For | ast.comprehension:
    return loop if isinstance(loop, ast.For) else loop.generators[0]


def _item(comprehension: Comprehension) -> ast.expr:
    return comprehension.key if isinstance(comprehension, ast.DictComp) else comprehension.elt


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and stores(node)}


class _Dependence:
    """Whether a pass of a loop needs what another one did."""

    def __init__(
        self,
        entered: Sequence[_Entering],
        rows: Sequence[NotedLine],
        sources: ProgramFiles,
        recurrent: set[FileLine],
    ) -> None:
        self.states = set[str]()  # of recurrent nets, which passes hand on
        self.loop, self.function = entered[0].loop, entered[0].function
        lines = {row.line for one in entered for row in rows[one.first : one.last]}
        located = {sources.located(line) for line in lines if line is not None}
        self.nets = [sources.located(line) for line in recurrent if line in lines]
        self.called = [one for one in located if one.function is not self.function]
        self.own = next((one.source for one in located if one.function is self.function), None)
        self.entered = {one.function.name for one in located if one.function is not None}
        nested = [node for node in ast.walk(self.loop) if isinstance(node, ast.comprehension)]
        overs = [self.loop] if isinstance(self.loop, ast.For) else nested
        self.items = {name for over in overs for name in _names(over.target)}
        self.through = [node for over in overs for node in ast.walk(over.iter)]
        body = self.loop.body if isinstance(self.loop, ast.For) else [self.loop]
        self.nodes = [node for part in body for node in ast.walk(part)]

    @cached_property
    def none(self) -> bool:
        try:
            keeps = any(KEEPS.search(name) for node in self.through if (name := last_name(node)))
            return not keeps and not self._leaves() and self._carries_nothing()
        except RecursionError:  # of expressions that are nested very deep
            return False

    def _leaves(self) -> bool:
        """Whether a pass may end the loop, or the function hands out what a pass makes."""
        inner = [node for node in self.nodes if isinstance(node, (ast.For, ast.While))]
        within = {id(node) for loop in inner for node in ast.walk(loop)}
        return any(
            isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal))
            or (isinstance(node, ast.Break) and id(node) not in within)
            for node in self.nodes
        )

    def _carries_nothing(self) -> bool:
        reads = _Reads()
        if isinstance(self.loop, ast.For):
            reads.statements(self.loop.body, set(self.items))
        carried = {name for name in reads.early & reads.stored.keys() if not reads.adds_up(name)}
        self.states = {name for name in carried if self._is_state(name)}
        if not all(self._is_known_before(name, reads) for name in carried - self.states):
            return False
        local = (_bound(self.nodes) | self.items) - reads.early
        effects = _Effects(self.items, self.nodes + [node for one in self.called for node in one.parts])
        known = {*self.entered, "print"}
        if self.own and not effects.of(self.nodes, local, self.own, known, own=True):
            return False
        for one in self.called:
            if one.source is None or one.statement is None:
                return False
            if _bound(one.parts) & one.source.shared:
                return False
            local = set[str]() if one.function is None else _bound(ast.walk(one.function))
            if not effects.of(one.parts, local, one.source, known, own=False):
                return False
        return effects.needs_nothing(self.nodes)

    def _is_known_before(self, name: str, reads: _Reads) -> bool:
        """Whether a name is bound to what no pass has computed."""
        bound = [
            one for one in self.nodes if isinstance(one, ast.Assign) and name in map(last_name, one.targets)
        ]
        values = {other for one in bound for other in _names(one.value)}
        return bool(self.states) and len(bound) == reads.stored[name] and not values & reads.stored.keys()

    def _is_state(self, name: str) -> bool:
        """Whether all that a pass does with a name is to hand it to a recurrent net, for its next state."""
        calls = [one for one in self.nodes if isinstance(one, ast.Assign) and _hands_on(one, name)]
        uses = [one for one in self.nodes if isinstance(one, ast.Name) and one.id == name]
        if len(calls) != 1 or len(uses) != 2:
            return False
        return any(
            net.statement is calls[0] or _is_handed(net, calls[0], name)
            for net in self.nets
            if net.statement is not None
        )


def _hands_on(one: ast.Assign, name: str) -> bool:
    """``y, h = net(x, h)``"""
    binds = any(name in _names(target) for target in one.targets)
    return binds and isinstance(one.value, ast.Call) and _place(one.value, name) is not None


def _place(call: ast.Call, name: str) -> int | str | None:
    """Which argument of a call a name is, or is a part of, as of ``(h, c)``: its place or its name."""
    for place, part in [*enumerate(call.args), *((word.arg, word.value) for word in call.keywords)]:
        parts = part.elts if isinstance(part, ast.Tuple) else [part]
        if any(isinstance(one, ast.Name) and one.id == name for one in parts):
            return place
    return None


def _is_handed(net: Located, by: ast.Assign, name: str) -> bool:
    """Whether the function in which a recurrent net is called hands it this argument, and does no more with
    it."""
    function, statement = net.function, net.statement
    if function is None or not isinstance(statement, ast.Assign) or not isinstance(by.value, ast.Call):
        return False
    place, known = _place(by.value, name), [one.arg for one in function.args.args]
    known = known[known[:1] == ["self"] :]
    state = (
        place if isinstance(place, str) else known[place] if place is not None and place < len(known) else ""
    )
    loads = [one for one in ast.walk(function) if isinstance(one, ast.Name) and not stores(one)]
    until = statement.end_lineno or statement.lineno
    early = [one for one in loads if one.id == state and one.lineno <= until]
    return len(early) == 1 and _hands_on(statement, state)


class _Reads:
    """The names that statements read, and those that they bind, in order."""

    def __init__(self) -> None:
        self.early = set[str]()  # read before they are bound
        self.loads = Counter[str]()
        self.stored = Counter[str]()
        self.sums = Counter[str]()  # stored as a sum with itself …
        self.counted = Counter[str]()  # … with a number
        self.own_loads = Counter[str]()

    def adds_up(self, name: str) -> bool:
        """Whether all that is done with a name is to add to it, or to count by it."""
        alone = self.loads[name] == self.own_loads[name] and self.sums[name] == self.stored[name]
        return alone or self.counted[name] == self.stored[name]

    def statements(self, body: Iterable[ast.stmt], bound: set[str]) -> bool:
        """Go through statements; whether what follows them runs."""
        return all(self._statement(one, bound) for one in body)

    def _statement(self, one: ast.stmt, bound: set[str]) -> bool:
        if isinstance(one, (ast.Continue, ast.Break, ast.Return, ast.Raise)):
            self._expressions(one, bound)
            return False
        if isinstance(one, (ast.Assign, ast.AnnAssign)):
            if one.value is not None:
                self._expression(one.value, bound)
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and one.value is not None:
                self._sum(targets[0].id, one.value)
            for target in targets:
                self._bind(target, bound)
        elif isinstance(one, ast.AugAssign):
            self._expression(one.value, bound)
            if isinstance(one.target, ast.Name):
                name = one.target.id
                if name not in bound:
                    self.early.add(name)
                if isinstance(one.op, ADDS) and name not in _names(one.value):
                    self.sums[name] += 1
                    self.counted[name] += isinstance(one.value, ast.Constant)
            self._bind(one.target, bound)
        elif isinstance(one, (ast.For, ast.AsyncFor)):
            self._expression(one.iter, bound)
            self._bind(one.target, bound)
            self.statements(one.body, bound)
            self.statements(one.orelse, bound)
        elif isinstance(one, (ast.If, ast.While)):
            self._expression(one.test, bound)
            branches = [set(bound), set(bound)]
            bodies = zip((one.body, one.orelse), branches, strict=True)
            goes_on = [names for body, names in bodies if self.statements(body, names)]
            bound |= set[str].intersection(*goes_on) if goes_on else set()
            return bool(goes_on)
        elif isinstance(one, (ast.With, ast.AsyncWith)):
            for item in one.items:
                self._expression(item.context_expr, bound)
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, bound)
            return self.statements(one.body, bound)
        elif isinstance(one, ast.Try):
            for handler in one.handlers:
                self.statements(handler.body, set(bound))
            return self.statements([*one.body, *one.orelse, *one.finalbody], bound)
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(one.name)
        else:
            self._expressions(one, bound)
        return True

    def _sum(self, name: str, value: ast.expr) -> None:
        parts, own = [value], 0
        while parts:
            part = parts.pop()
            if isinstance(part, ast.BinOp) and isinstance(part.op, ADDS[:2]):
                parts += [part.left, part.right]
            elif isinstance(part, ast.Name) and part.id == name:
                own += 1
            elif name in _names(part):
                return
        if own == 1:
            self.sums[name] += 1
            self.own_loads[name] += 1

    def _bind(self, target: ast.expr, bound: set[str]) -> None:
        if isinstance(target, ast.Name):
            self.stored[target.id] += 1
            bound.add(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part, bound)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, bound)
        else:
            self._expressions(target, bound)

    def _expressions(self, node: ast.AST, bound: set[str]) -> None:
        for child in ast.iter_child_nodes(node):
            self._expression(child, bound)

    def _expression(self, node: ast.AST, bound: set[str]) -> None:
        if isinstance(node, ast.Name):
            self.loads[node.id] += 1
            if node.id not in bound:
                self.early.add(node.id)
        elif isinstance(node, COMPREHENSION):
            inner = set(bound)
            for part in node.generators:
                self._expression(part.iter, inner)
                inner |= _names(part.target)
                for condition in part.ifs:
                    self._expression(condition, inner)
            self._expression(_item(node), inner)
            if isinstance(node, ast.DictComp):
                self._expression(node.value, inner)
        elif isinstance(node, ast.Lambda):
            self._expression(node.body, bound | {one.arg for one in node.args.args})
        else:
            self._expressions(node, bound)
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target, bound)


class _Effects:
    """Writes of a pass into what is there before it and after it, and where the pass reads this."""

    def __init__(self, items: set[str], nodes: Iterable[ast.AST]) -> None:
        self.items = items
        self.written: list[tuple[ast.AST, ast.AST | None]] = []  # an object, and which part of it
        self.parts: dict[int, ast.AST] = {}
        self.attributes = defaultdict[str, list[ast.AST]](list)
        for node in nodes:
            if isinstance(node, ast.Subscript):
                self.parts[id(node.value)] = node.slice
            elif isinstance(node, ast.Attribute) and not stores(node):
                self.attributes[node.attr].append(node)

    def of(
        self, nodes: Sequence[ast.AST], local: set[str], source: ProgramFile, known: set[str], *, own: bool
    ) -> bool:
        """Note what nodes write into that is not ``local`` to the pass; whether all of it can be known."""
        for_effect = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        added_to = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}

        def outside(node: ast.AST) -> bool:
            name = _begins_with(node)
            return bool(name) and name not in local and name not in source.imported

        for node in nodes:
            written = list[ast.AST]()
            if isinstance(node, ast.Attribute) and stores(node) and outside(node):
                if id(node) not in added_to:
                    return False
                written = [node]
            elif isinstance(node, ast.Subscript) and stores(node) and outside(node.value):
                written = [node]
            elif isinstance(node, ast.Call):
                name = last_name(node.func)
                if GOES_ON.fullmatch(name) and (outside(node.func) or not WRITES.fullmatch(name)):
                    return False
                kept = [part for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))]
                if any(KEEPS.search(last_name(part)) and outside(part) for part in kept):
                    return False
                written = [word.value for word in node.keywords if word.arg == "out"]
                if isinstance(node.func, ast.Attribute) and WRITES.fullmatch(name):
                    written.append(node.func.value)
                elif id(node) in for_effect and name not in known:
                    by_object = isinstance(node.func, ast.Attribute) and outside(node.func)
                    written += [node.func.value] if by_object else node.args  # pyright: ignore
                written = [one for one in written if outside(one)]
            for one in written:
                whole, part = _taken_apart(one)
                if isinstance(whole, ast.Name) and not own:
                    return False
                self.written.append((whole, part))
        return True

    def needs_nothing(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether what is written into is not read by the passes, or each reads and writes its own part."""
        names = defaultdict[str, list[ast.AST]](list)
        for node in nodes:
            if isinstance(node, ast.Name) and not stores(node):
                names[node.id].append(node)
        objects = {id(whole) for whole, _ in self.written}
        for whole, part in self.written:
            name = last_name(whole)
            all_of_it = names[name] if isinstance(whole, ast.Name) else self.attributes[name]
            reads = [node for node in all_of_it if id(node) not in objects]
            if not reads:
                continue
            places = [self._own_places(self.parts.get(id(node))) for node in reads]
            same = [self._own_places(other) for at, other in self.written if last_name(at) == name]
            if not set[tuple[int, str]].intersection(*places, *same, self._own_places(part)):
                return False
        return True

    def _own_places(self, part: ast.AST | None) -> set[tuple[int, str]]:
        """At which places of an index the loop's own item stands."""
        indexes = part.elts if isinstance(part, ast.Tuple) else [part]
        return {
            (place, index.id)
            for place, index in enumerate(indexes)
            if isinstance(index, ast.Name) and index.id in self.items
        }


def _begins_with(node: ast.AST) -> str:
    """``states`` of ``states[i].mean.mul_(2)``; nothing of what a function gives."""
    while not isinstance(node, ast.Name):
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        else:
            return ""
    return node.id


def _taken_apart(node: ast.AST) -> tuple[ast.AST, ast.AST | None]:
    """An object and the part of it that is written into: ``states`` and ``i`` of ``states[i].mean``."""
    part = None
    at = node
    while True:
        if isinstance(at, ast.Subscript):
            node, part = at.value, at.slice
            at = at.value
        elif isinstance(at, (ast.Attribute, ast.Starred)) and not isinstance(at.value, ast.Name):
            at = at.value
        elif isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute):
            at = at.func.value
            node = at if part is None else node
        else:
            return (node if part is not None else at), part
