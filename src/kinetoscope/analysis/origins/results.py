"""Lines of the step with lines that work on results which the program read, by its own source: those that
read a name bound to what was read, or to what was made of that, the lines of functions that they call, and
the caller's statement to which a function returns them. What is written into objects is not followed."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import (
    AS_OBJECT,
    WRITES,
    FileLine,
    Located,
    NotedLine,
    ProgramFiles,
    first_of,
    noted_lines,
    program_files,
)
from kinetoscope.sources.run import LoadedRun


class ResultLines:
    """The lines of one rank's step after those that read results; times are of the step with lines."""

    def __init__(self, rows: Sequence[NotedLine], sources: ProgramFiles) -> None:
        self._rows = [row for row in rows if row.line is not None]
        self._starts = [row.start_ns for row in self._rows]
        self._sources = sources

    def work(self, read_ns: pl.Series, since_ns: pl.Series, until_ns: pl.Series) -> pl.Series:
        """Whether most of the time between two moments after each read works on its result; null: unknown."""
        times = zip(read_ns, since_ns, until_ns, strict=True)
        found = [None if None in one or one[1] >= one[2] else self._works(*one) for one in times]
        return pl.Series(found, dtype=pl.Boolean)

    def _works(self, read_ns: int, since_ns: int, until_ns: int) -> bool | None:
        first, last = bisect_right(self._starts, read_ns) - 1, bisect_left(self._starts, until_ns)
        if not 0 <= first < last:
            return None
        spent_ns = 0
        for row, works in zip(self._rows[first:last], self._followed(first, last), strict=False):
            if works:
                spent_ns += max(0, min(row.end_ns, until_ns) - max(row.start_ns, since_ns))
        return 2 * spent_ns > until_ns - since_ns

    def _followed(self, at: int, last: int) -> Iterator[bool]:
        """Whether each line from one that reads on works on what it read; as far as that is known."""
        here = self._located(at)
        if here.statement is None:
            return
        names, works = _bound(here), True
        called: list[tuple[object, object]] = []  # the functions that the statement is in, by their files
        for number in range(at, last):
            now = self._located(number)
            if now.statement is None:
                return
            place = now.source, now.function
            if place == (here.source, here.function):
                called.clear()
            elif place in called:
                del called[called.index(place) + 1 :]
            elif _calls(self._located(number - 1), now):
                called.append(place)
            else:  # back in the function that called this one
                before = (self._located(one) for one in range(at, -1, -1))
                calling = next((one for one in before if (one.source, one.function) == place), None)
                if calling is None or not (works and isinstance(here.statement, ast.Return)):
                    return
                here, names = calling, _bound(calling)
                called.clear()
            if not called and now.statement is not here.statement:
                here, works = now, bool(_read(now) & names)
                names = names | _bound(now) if works else names - _bound(now)
            yield works

    def fills(self, loop: str, read: str) -> bool:
        """Whether the loop at a line (``eval.py:56``) makes what a later line of its function reads."""
        file, _, first = loop.rpartition(":")
        of, _, last = read.rpartition(":")
        begins, ends = (self._sources.located(FileLine(file, int(number))) for number in (first, last))
        function = begins.function
        if not of.endswith(file) or function is None or ends.function is not function:
            return False
        source, until = begins.source, begins.statement.end_lineno if begins.statement else None
        if source is None or until is None or ends.statement is None or until >= ends.statement.lineno:
            return False
        own = [one for one, function_of in source.function.items() if function_of is function]
        needed = _read(ends)
        for statement in sorted(own, key=lambda one: -one.lineno):
            one = Located(source, statement, function)
            if not int(first) <= statement.lineno <= ends.statement.lineno:
                continue
            if (_bound(one) | _written(one)) & needed:
                if statement.lineno <= until:
                    return True
                needed |= _read(one)
        return False

    def _located(self, number: int) -> Located:
        line = self._rows[number].line
        assert line is not None
        return self._sources.located(line)


@remembered
def result_lines(run: LoadedRun) -> Mapping[int, ResultLines]:
    files = program_files(run)
    return {rank: ResultLines(noted_lines(noted), files) for rank, noted in run.lines.items()}


def _calls(line: Located, now: Located) -> bool:
    """Whether the line after another begins a function that the other's statement names."""
    function = now.function
    if function is None or now.statement is not first_of(function):
        return False
    names = {getattr(node, "id", getattr(node, "attr", None)) for node in line.parts}
    return function.name in names or function.name in AS_OBJECT


def _names(one: Located, context: type[ast.expr_context]) -> set[str]:
    """The names, and attributes of names, that a statement reads or binds: ``meter`` and ``meter.counts``."""
    nodes = (node for node in one.parts if isinstance(node, (ast.Name, ast.Attribute)))
    return {ast.unparse(node) for node in nodes if isinstance(node.ctx, context)}


def _read(one: Located) -> set[str]:
    added = _bound(one) if isinstance(one.statement, ast.AugAssign) else set[str]()
    return _names(one, ast.Load) | added


def _bound(one: Located) -> set[str]:
    return _names(one, ast.Store)


def _written(one: Located) -> set[str]:
    """The names, and attributes of names, that a statement writes into."""
    found = set[str]()
    for node in one.parts:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.add(ast.unparse(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= {ast.unparse(node.func.value)} if WRITES.fullmatch(node.func.attr) else set()
    return found
