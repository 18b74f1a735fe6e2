"""Calls of modules that get in each step what they got in the one before, and lines in which torch makes the
same of the same, by the program's own source.

A name or an attribute is the same in the next step where no line of the step binds it, writes into it or
hands it to a call for its effect, an argument of a function where its callers pass what is the same, an item
of a loop within the step where what that goes through is, and what a function of torch or NumPy gives where
its arguments are, or one of the program's own where all that it binds and asks is. What other expressions
give may be new each time. What another thread writes, or a library, is not seen.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import (
    AS_OBJECT,
    GIVES_NEW,
    IN_PLACE,
    WRITES,
    FileLine,
    Function,
    ModuleCall,
    ProgramFile,
    ProgramFiles,
    first_of,
    last_name,
    noted_lines,
    parameters,
    program_files,
    root,
    stores,
)
from kinetoscope.analysis.time import intervals
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Calls that give the same again for the same: tensors in another form, words as numbers, what Python counts.
CONVERTS = re.compile(
    r"tensor|as_tensor|from_numpy|stack|cat|to|cuda|half|float|bfloat16|long|contiguous|pin_memory|view|reshape"
    r"|flatten|(un)?squeeze|expand|repeat|permute|transpose|t|tokenize|tokenizer"
    r"|range|len|zip|enumerate|list|tuple|reversed|sorted|min|max|sum|int|float"
)
# Methods that give the same again for the same, besides.
COMPUTES = re.compile(
    r"astype|numpy|copy|clone|abs|log|log10|exp|sqrt|sin|cos|square|mean|cumsum|clip|clamp|round"
)
# Functions of torch and of libraries for numbers that give something else each time.
DRAWS = re.compile(
    r"rand|normal$|bernoulli|multinomial|poisson|dropout|empty|load|seed|state|from(file|regex|txt)|memmap|read"
)
# Functions whose result is new memory.
MAKES = re.compile(r"(zeros|ones|full|eye)(_like)?|array|arange|linspace|dict|list")
OF_PLACE = ("device", "dtype")  # attributes that a tensor keeps from step to step, whatever is in it
# Expressions of which a part may not be evaluated, or several times.
MAY_NOT_RUN = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)
DEEPEST = 12  # names that are made of others, and functions whose arguments are followed
MOST = 10_000  # names that are looked at for one line

SCHEMA = {"lane": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "module": pl.String, "line": pl.String}
# By function and name, what is bound to it; None: what is not known.
Bound = defaultdict[Function | None, defaultdict[str, list[ast.expr | None]]]


ModuleCalls = defaultdict[FileLine, list[ModuleCall]]


@remembered
def unchanged_calls(run: LoadedRun) -> Mapping[int, pl.DataFrame]:
    """By rank whose lines were noted, the outermost such calls in the step with lines: ``lane``,
    ``start_ns``, ``end_ns``, ``module`` (the class) and ``line`` (``train.py:12``) of the call."""
    tables = dict[int, pl.DataFrame]()
    for rank, (step, calls) in _followed(run).items():
        found = [call for place, same in calls.items() if step.repeats(place, same) for call in same]
        tables[rank] = intervals.outermost(pl.DataFrame(found, SCHEMA, orient="row"), ["lane"])
    return tables


@remembered
def unchanged_lines(run: LoadedRun) -> Mapping[int, Mapping[str, list[str]]]:
    """By rank whose lines were noted, the lines (``train.py:12``) of statements in the step with lines that
    bind or return what torch makes of the same as in the step before, and those that run for nothing else:
    of the functions that they alone call."""
    found = dict[int, Mapping[str, list[str]]]()
    for rank, (step, _) in _followed(run).items():
        same = [place for place in sorted(set(step.places)) if step.makes_same(place)]
        found[rank] = {str(place): [str(one) for one in step.runs_for(place)] for place in same}
    return found


@remembered
def unchanged_normalizations(run: LoadedRun) -> Mapping[int, Mapping[str, list[bool]]]:
    """By rank whose lines were noted and line (``train.py:12``) of the step with lines: of each call of
    torch's ``normalize`` in its statement, in the order in which the step makes them, whether it gets the
    same as in the step before. Lines with no such call are left out."""
    return {
        rank: {
            str(place): same
            for place in sorted(set(step.places))
            if any(same := step.gets_same(place, "normalize"))
        }
        for rank, (step, _) in _followed(run).items()
    }


@remembered
def _followed(run: LoadedRun) -> Mapping[int, tuple[_LinedStep, ModuleCalls]]:
    found = ((rank, _of_step(noted, program_files(run))) for rank, noted in run.lines.items())
    return {rank: followed for rank, followed in found if followed is not None}


def _of_step(noted: Trace, sources: ProgramFiles) -> tuple[_LinedStep, ModuleCalls] | None:
    """The way of a step, and the calls of modules by the line that calls them."""
    rows = noted_lines(noted)
    last = next((one.line for one in reversed(rows) if one.line is not None), None)
    if last is None:
        return None
    step, calls = _LinedStep(sources, last), ModuleCalls(list)
    within, comes_back = set[int](), False  # the ends of the modules' calls that run
    for lane, start_ns, end_ns, line, module in rows:
        if line is not None:
            over = {end for end in within if end <= start_ns}
            within, comes_back = within - over, comes_back or bool(over)
            if start_ns not in over:  # there, the last line of the call goes on until the next is noted
                step.comes_by(start_ns, line, comes_back=comes_back)
                comes_back = False
            continue
        within.add(end_ns)
        if module is not None and (not (same := calls[step.at]) or start_ns >= same[-1].end_ns):
            same.append(ModuleCall(lane, start_ns, end_ns, module, str(step.at)))
    return step, calls


class _LinedStep:
    """A step's way through the program; what comes before its first line is its last, of the step before."""

    def __init__(self, sources: ProgramFiles, last: FileLine) -> None:
        self.sources, self.at = sources, last
        self.times, self.places = list[int](), list[FileLine]()
        self.within, self.ended = list[Function | None](), set[Function | None]()
        self.callers: defaultdict[Function, set[FileLine]] = defaultdict(set)
        self.home = dict[Function, ProgramFile]()  # the file of each function that is called
        self.following = set[tuple[Function | None, str]]()
        self.left = MOST
        self.begun = Counter[ast.stmt | None]()  # statements, without what goes on after a call

    def comes_by(self, at_ns: int, place: FileLine, *, comes_back: bool) -> None:
        """The next line, which may begin a called function unless it ``comes_back`` from a module."""
        source, statement, function = self.sources.located(place)
        _, last, calling = self.sources.located(self.at)
        goes_on = statement is last  # after a call
        begins = function is not None and statement is first_of(function)
        enters = begins and function not in self.within and not comes_back
        if not goes_on and (enters or function is calling):
            self.begun[statement] += 1
        if function in self.within:
            keeps = self.within.index(function) + 1
        elif function is not None and source is not None and enters and not goes_on:
            self.callers[function].add(self.at)
            self.home[function] = source
            keeps = len(self.within)
        else:  # back in one that called these before the step
            keeps = 0
        self.ended |= set(self.within[keeps:])
        self.within[keeps:] = [] if function in self.within[:keeps] else [function]
        self.at = place
        self.times.append(at_ns)
        self.places.append(place)

    def repeats(self, place: FileLine, modules: Sequence[ModuleCall]) -> bool:
        """Whether the modules that a line calls get the same as in the step before: what it calls by name, it
        calls with arguments that are the same; each class is called once, or no more modules than there are
        such calls, so none in a loop of a library; and no line inside of these calls writes an attribute."""
        source, statement, function = self.sources.located(place)
        if source is None or statement is None:
            return False
        # Functions that the step enters are no modules: what they call, lines of theirs call.
        calls = [
            call
            for call in _calls(source, statement)
            if (name := last_name(call.func)) not in self._entered and not CONVERTS.fullmatch(name)
        ]
        parts = [part for call in calls for part in (call.func, *call.args, *call.keywords)]
        begun = self.begun[statement]
        once = set(Counter(call.module for call in modules).values()) == {begun}
        if not once and (not begun or len(modules) % begun or len(modules) > begun * len(calls)):
            return False
        if not calls or not all(call.args or call.keywords for call in calls):
            return False
        return all(self._each_same(parts, source, function)) and not any(map(self._keeps_state, modules))

    def makes_same(self, place: FileLine) -> bool:
        """Whether the statement of a line binds or returns what it did in the step before."""
        source, statement, function = self.sources.located(place)
        if source is None or not isinstance(statement, (ast.Assign, ast.Return)):
            return False
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        parts = [target for target in targets if isinstance(target, ast.Subscript)]
        if not {last_name(target) for target in parts} <= source.dictionaries:
            return False  # what is written into may be new
        return statement.value is not None and all(self._each_same([statement.value], source, function))

    def runs_for(self, place: FileLine) -> list[FileLine]:
        """The line, and all of functions that are called from it alone, or from functions that are."""
        statement = self.sources.located(place).statement
        functions, within = set[Function](), {one for one in set(self.places) if self._in(one, statement)}
        while new := {one for one, callers in self.callers.items() if callers <= within} - functions:
            functions |= new
            within |= {one for one in set(self.places) if self.sources.located(one).function in functions}
        return sorted(within)

    def _in(self, place: FileLine, statement: ast.stmt | None) -> bool:
        return self.sources.located(place).statement is statement

    def gets_same(self, place: FileLine, name: str) -> list[bool]:
        """Whether each call of a function of torch in the statement of a line gets what it got in the step
        before, in the order in which the step makes them; none where some may not be made."""
        source, statement, function = self.sources.located(place)
        if source is None or statement is None:
            return []
        parts = source.parts[statement]
        if any(isinstance(part, MAY_NOT_RUN) for part in parts):
            return []
        calls = [part for part in parts if isinstance(part, ast.Call) and last_name(part.func) == name]
        calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
        if not all(root(call.func) in source.of_torch for call in calls):
            return []
        return self._each_same(calls, source, function) * self.begun[statement]

    def _each_same(
        self, nodes: Sequence[ast.AST], source: ProgramFile, function: Function | None
    ) -> list[bool]:
        """Whether each expression gives the same in the next step; False of what is nested too deep."""
        self.following.clear()
        self.left = MOST
        try:
            return [self._same(node, source, function) for node in nodes]
        except RecursionError:
            return [False] * len(nodes)

    def _keeps_state(self, call: ModuleCall) -> bool:
        first, last = (bisect_left(self.times, at_ns) for at_ns in (call.start_ns + 1, call.end_ns))
        written = (self._written(place) for place in set(self.places[first:last]))
        return any(isinstance(target, ast.Attribute) for targets in written for target in targets)

    def _written(self, place: FileLine) -> Iterator[ast.AST]:
        """The names, attributes and other targets that the statement of a line binds or writes into."""
        located = self.sources.located(place)
        for node in located.parts:
            if stores(node):
                yield node.value if isinstance(node, ast.Subscript) else node
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and WRITES.fullmatch(node.func.attr):
                    yield node.func.value
                yield from (keyword.value for keyword in node.keywords if keyword.arg == "out")
                for_effect = isinstance(located.statement, ast.Expr) and located.statement.value is node
                name, known = last_name(node.func), {"print", *self._entered}  # what they write into
                if for_effect and name not in known and not IN_PLACE.fullmatch(name):
                    yield from node.args

    @property
    def _entered(self) -> set[str]:
        return {function.name for function in self.callers}

    @cached_property
    def _changed(self) -> tuple[Bound, set[str]]:
        """The names that lines of the step bind, and those that they write into."""
        bound, written = Bound(lambda: defaultdict(list)), set[str]()
        parts = list[tuple[Function | None, ast.Name, ast.Assign]]()
        for place in set(self.places):
            source, statement, function = self.sources.located(place)
            written |= source.shared if source else set()
            part = None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                part = getattr(statement.targets[0], "value", None)
                if isinstance(statement.targets[0], ast.Subscript) and isinstance(part, ast.Name):
                    parts.append((function, part, statement))
            for target in self._written(place):
                if isinstance(target, ast.Name) and not isinstance(target.ctx, ast.Load):
                    bound[function][target.id].append(self._value(target, place))
                elif not isinstance(target, ast.Name) or target is not part:
                    written.add(last_name(target))
        for function, name, statement in parts:
            # What a function makes anew is made of its parts as well.
            values = bound[function].get(name.id, []) if function in self.callers else []
            anew = bool(values) and all(map(_is_new, values))
            if anew and (function is None or name.id not in parameters(function)):
                bound[function][name.id] += [statement.value, *_indices(statement)]
            else:
                written.add(name.id)
        return bound, written

    def _value(self, target: ast.Name, place: FileLine) -> ast.expr | None:
        """The expression that a statement binds to a name; of a loop that the step enters anew what it goes
        through, of which each pass has the same part in each step."""
        located = self.sources.located(place)
        _, statement, function = located
        if isinstance(statement, ast.Assign) and target in ast.walk(statement.targets[0]):
            return statement.value if len(statement.targets) == 1 else None
        loops = [node for node in located.parts if isinstance(node, (ast.For, ast.comprehension))]
        loop = next((loop for loop in loops if target in ast.walk(loop.target)), None)
        if loop is None or not (function in self.callers or self._begins_in_step(loop, statement, function)):
            return None
        # It may be the loop whose passes are the steps.
        if isinstance(loop, ast.For) and self.begun[loop.body[0]] < 2:
            return None
        through, names = loop.iter, loop.target
        if isinstance(through, ast.Call) and isinstance(names, ast.Tuple) and target in names.elts:
            nth, of = names.elts.index(target), through.args
            if last_name(through.func) == "zip" and len(of) == len(names.elts):
                return of[nth]
            if last_name(through.func) == "enumerate":
                return of[0] if of else None
        return through

    def _begins_in_step(
        self, loop: ast.For | ast.comprehension, statement: ast.stmt | None, function: Function | None
    ) -> bool:
        """Whether a step begins and ends outside of a loop of the function that makes the steps; of a
        comprehension, which may be all that comes before its end or after its beginning, one of both."""
        own = (self.sources.located(place) for place in self.places)
        statements = [one.statement for one in own if one.function is function]
        ends = (statements[0], statements[-1])
        if isinstance(loop, ast.comprehension):
            return any(one is not statement for one in ends)
        inside = set(ast.walk(loop))
        return not any(one in inside for one in ends)

    def _gives_same(self, function: Function, depth: int) -> bool:
        """Whether a function of the program gives the same in the next step: all that it asks and returns."""
        source, name = self.home[function], (function, "return")
        if function in source.resumed or isinstance(function, ast.AsyncFunctionDef) or name in self.following:
            return False
        own = [statement for statement, of in source.function.items() if of is function]
        asked = [one.test for one in own if isinstance(one, (ast.If, ast.While))]
        asked += [one.iter for one in own if isinstance(one, ast.For)]
        given = [one.value for one in own if isinstance(one, ast.Return) and one.value is not None]
        if not given or any(isinstance(one, (ast.Match, ast.Try, ast.With)) for one in own):
            return False
        self.following.add(name)
        same = all(self._same(one, source, function, depth + 1) for one in (*asked, *given))
        self.following.remove(name)
        return same

    def _same(self, node: ast.AST, source: ProgramFile, function: Function | None, depth: int = 0) -> bool:
        """Whether an expression gives the same in the next step."""
        bound, written = self._changed
        if isinstance(node, ast.Name):
            name, values = (function, node.id), bound[function].get(node.id, [])
            self.left -= 1
            if node.id in written or GIVES_NEW.search(node.id) or depth > DEEPEST or self.left < 0:
                return False
            if name in self.following:  # made of itself, which begins anew where the step enters its function
                return function in self.callers
            self.following.add(name)
            same = all(value and self._same(value, source, function, depth + 1) for value in values)
            self.following.remove(name)
            if function is not None and node.id in parameters(function):
                places = self.callers.get(function, ())
                known = bool(places) or function not in self.ended  # else its next call is not in this step
                passed = (self._passes(place, function, node.id, depth) for place in places)
                return same and known and all(passed)
            if not same or values or function is None:
                return same
            return self._same(node, source, source.function[function], depth)
        if isinstance(node, ast.Attribute) and node.attr in OF_PLACE:
            return True
        if isinstance(node, ast.Attribute):
            changes = node.attr in written or node.attr in self._entered or GIVES_NEW.search(node.attr)
            return not changes and self._same(node.value, source, function, depth)
        if isinstance(node, ast.Call):
            by_name, name = isinstance(node.func, ast.Name), last_name(node.func)
            of_library = root(node.func) in source.of_torch | source.of_numbers
            own = [one for one in self.callers if one.name == name]
            if own and not of_library:
                receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                parts = (*receiver, *node.args, *node.keywords)
                known = len(own) == 1 and all(self._same(part, source, function, depth) for part in parts)
                return known and self._gives_same(own[0], depth)
            draws = DRAWS.search(ast.unparse(node.func) if root(node.func) in source.of_numbers else name)
            computes = of_library and name.islower() and not draws
            if not (CONVERTS.fullmatch(name) or COMPUTES.fullmatch(name) or computes):
                return False
            parts = [*([] if by_name or of_library else [node.func]), *node.args, *node.keywords]
            return all(self._same(part, source, function, depth) for part in parts)
        if isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(node, ast.comprehension):
            return all(self._same(part, source, function, depth) for part in (node.iter, *node.ifs))
        return all(self._same(child, source, function, depth) for child in ast.iter_child_nodes(node))

    def _passes(self, place: FileLine, called: Function, name: str, depth: int) -> bool:
        """Whether all calls in a line that may be of this function pass the same for a parameter of it."""
        source, statement, function = self.sources.located(place)
        if source is None or statement is None:
            return False
        calls = _calls(source, statement)
        if called.name in AS_OBJECT:
            calls = [call for call in calls if not _of_tensors(call)]
        else:
            named = [call for call in calls if last_name(call.func) == called.name]
            calls = named or [call for call in calls if _may_call(call, called)]  # by an attribute
        passed = [_argument(call, called, name) for call in calls]
        return bool(passed) and all(
            node is not None and self._same(node, source, function, depth + 1) for node in passed
        )


def _calls(source: ProgramFile, statement: ast.stmt) -> list[ast.Call]:
    """The calls of names, and of their attributes, that are neither imported nor of Python itself."""
    calls = [node for node in source.parts[statement] if isinstance(node, ast.Call)]
    return [call for call in calls if (name := root(call.func)) and name not in source.imported]


def _of_tensors(call: ast.Call) -> bool:
    """Whether a call is of a method that tensors have, and so of no module."""
    name = last_name(call.func)
    converts = isinstance(call.func, ast.Attribute) and CONVERTS.fullmatch(name)
    return bool(converts or WRITES.fullmatch(name))


def _may_call(call: ast.Call, called: Function) -> bool:
    """Whether a call by another name passes what a function takes, and not the function itself."""
    of = called.args
    places = [one.arg for one in (*of.posonlyargs, *of.args) if one.arg != "self"]
    named = {keyword.arg for keyword in call.keywords}
    needed = set(places[: len(places) - len(of.defaults)])
    handed_on = any(last_name(argument) == called.name for argument in call.args)
    fits = len(call.args) <= len(places) and needed <= {*places[: len(call.args)], *named} <= {
        *parameters(called)
    }
    return fits and not handed_on


def _argument(call: ast.Call, called: Function, name: str) -> ast.AST | None:
    """The expression that a call passes for a parameter; None where that is not known."""
    places = [one.arg for one in (*called.args.posonlyargs, *called.args.args)]
    is_method = places[:1] == ["self"]
    if is_method and name == "self":
        return call.func if called.name in AS_OBJECT else getattr(call.func, "value", None)
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in by_name:
        return by_name[name]
    if None in by_name or name not in places:
        return None
    place = places.index(name)
    several = next((at for at, one in enumerate(call.args) if isinstance(one, ast.Starred)), len(call.args))
    if place - is_method >= several and several < len(call.args):  # one of their items, or of the next
        return ast.Tuple([getattr(one, "value", one) for one in call.args[several:]], ast.Load())
    if place - is_method < len(call.args):
        return call.args[place - is_method]
    return ast.Constant(None) if place >= len(places) - len(called.args.defaults) else None


def _is_new(value: ast.expr | None) -> bool:
    """Whether an expression makes what nothing else holds."""
    made = isinstance(value, ast.Call) and MAKES.fullmatch(last_name(value.func))
    return bool(made) or isinstance(value, (ast.List, ast.Dict, ast.ListComp, ast.DictComp))


def _indices(assigns: ast.Assign) -> list[ast.expr | None]:
    """The indices of the parts into which a statement writes."""
    return [target.slice for target in assigns.targets if isinstance(target, ast.Subscript)]
