"""Calls of one module, in statements of one block, of which none needs another's result: by the program's own
source and the step with lines.

A call needs another one where an argument comes of its result, where the module keeps something of a call, or
where what is between them changes the module. What libraries keep is not seen.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.source import (
    WRITES,
    FileLine,
    Function,
    NotedLine,
    ProgramFile,
    ProgramFiles,
    last_name,
    noted_lines,
    program_files,
    root,
    stores,
)
from kinetoscope.sources.run import LoadedRun

# Calls after which a module is another, or its inputs are.
CHANGES = re.compile(
    r"backward|step|zero_grad|next|send|recv|reset|train|eval|load_state_dict|requires_grad_|apply"
)
KEEPS = re.compile(r"(?i)cache|past|hidden|state|memory|(^|_)kv($|_)")

SCHEMA = {
    "lane": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "line": pl.String,
    "module": pl.String,
    "passes": pl.Int64,
    "share": pl.Float64,
    "sort": pl.String,
}


class _Running(NamedTuple):
    """A function of the program that runs, or no function, and the statement in which it is."""

    number: int  # of the call
    line: FileLine
    source: ProgramFile
    statement: ast.stmt
    function: Function | None


class _Call(NamedTuple):
    """A module's call: its row among the noted lines, what made it, and what called that."""

    row: int
    frame: _Running
    caller: _Running | None


@remembered
def independent_calls(run: LoadedRun) -> Mapping[int, pl.DataFrame]:
    """By rank whose lines were noted, each of such calls: ``lane``, ``start_ns``, ``end_ns``; the ``line`` of
    the first of them (``train.py:12``) and the ``module``'s class; the ``share`` of it that goes if they are
    one: nothing of the first, all of the others. ``passes`` is 1 and ``sort`` is ``calls``."""
    return {
        rank: pl.DataFrame(list(_of_step(noted_lines(noted), program_files(run))), SCHEMA, orient="row")
        for rank, noted in run.lines.items()
    }


def _of_step(
    rows: Sequence[NotedLine], sources: ProgramFiles
) -> Iterator[tuple[int, int, int, str, str, int, float, str]]:
    over_ns = dict[int, int]()
    for calls in _by_caller(rows, sources):
        first = rows[calls[0].row]
        # Calls within calls that are found already go with these.
        if first.start_ns < over_ns.get(first.lane, 0) or (at := _apart(calls, rows, sources)) is None:
            continue
        over_ns[first.lane] = rows[calls[-1].row].end_ns
        line = f"{at.file.rpartition('/')[2]}:{at.number}"
        for number, call in enumerate(calls):
            row = rows[call.row]
            share = float(number > 0)
            yield row.lane, row.start_ns, row.end_ns, line, row.called or "", 1, share, "calls"


def _by_caller(rows: Sequence[NotedLine], sources: ProgramFiles) -> list[list[_Call]]:
    """Several calls of one class's modules by one function within one call of a module, in their order."""
    around, running = defaultdict[int, list[int]](list), defaultdict[int, list[_Running]](list)
    groups = defaultdict[tuple[object, ...], list[_Call]](list)
    for number, row in enumerate(rows):
        frames, outer = running[row.lane], around[row.lane]
        if row.line is not None:
            _reach(frames, number, row.line, sources)
            continue
        while outer and rows[outer[-1]].end_ns <= row.start_ns:
            outer.pop()
        if frames:
            key = row.lane, outer[-1] if outer else None, frames[-1].source, frames[-1].function, row.called
            groups[key].append(_Call(number, frames[-1], frames[-2] if len(frames) > 1 else None))
        outer.append(number)
    return [calls for calls in groups.values() if len(calls) > 1]


def _reach(frames: list[_Running], number: int, line: FileLine, sources: ProgramFiles) -> None:
    """Note what runs once a line is reached: a function that runs already, or one that is called."""
    source, statement, function = sources.located(line)
    if source is None or statement is None:
        return
    places = [place for place, frame in enumerate(frames) if frame.function is function]
    place = places[-1] if places else 0 if function is None else len(frames)
    number = frames[place].number if places else number
    frames[place:] = [_Running(number, line, source, statement, function)]


def _apart(calls: Sequence[_Call], rows: Sequence[NotedLine], sources: ProgramFiles) -> FileLine | None:
    """The first line of calls that need nothing of each other: the module's own, or, where each is made by
    another call of one function (``embed(x)``, ``embed(y)``), those of the function."""
    frames = [call.frame for call in calls]
    function = frames[0].function
    try:
        found = _independent(frames)
        if not found and function is not None and len({frame.number for frame in frames}) == len(calls):
            frames = [call.caller for call in calls if call.caller is not None]
            found = len(frames) == len(calls) and len({frame.number for frame in frames}) == 1
            found = found and _independent(frames, function.name)
            found = found and not any(map(_is_kept, ast.walk(function)))
    except RecursionError:  # of expressions that are nested very deep
        return None
    keeps = any(_keeps(rows[call.row], call.row, rows, sources) for call in calls)
    return frames[0].line if found and not keeps else None


def _independent(frames: Sequence[_Running], function: str = "") -> bool:
    """Whether statements of one block make all calls, each by an expression of its own and of the same object
    (by a ``function`` of that name), and none needs another one's result."""
    made = Counter(frame.statement for frame in frames)
    block = _block(frames[0].source, list(made))
    if block is None:
        return False
    texts = [Counter(_text(call.func) for call in _calls(statement)) for statement in made]
    same = [text for text in texts[0] if text and [found[text] for found in texts] == list(made.values())]
    same = [text for text in same if not function or text.rpartition(".")[2] == function]
    places = sorted(block.index(statement) for statement in made)
    return len(same) == 1 and _needs_nothing(block[places[0] : places[-1] + 1], same[0])


def _calls(statement: ast.stmt) -> list[ast.Call]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call)]


def _text(called: ast.expr) -> str:
    """``self.net`` of ``self.net(x)``; nothing of what is no chain of names."""
    return ast.unparse(called) if root(called) else ""


def _block(source: ProgramFile, statements: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """The block that has all of them."""
    for one in source.function:
        for name in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(one, name, [])
            if all(statement in block for statement in statements):
                return block
    return None


def _needs_nothing(block: Sequence[ast.stmt], text: str) -> bool:
    results = set[str]()
    for statement in block:
        nodes, calls = list(ast.walk(statement)), _calls(statement)
        if any(CHANGES.fullmatch(last_name(call.func)) for call in calls):
            return False
        own = [call for call in calls if _text(call.func) == text]
        for call in own:
            given = [*call.args, *(word.value for word in call.keywords)]
            inner = [node for one in given for node in ast.walk(one)]
            if any(node in own for node in inner) or _named(inner) & results:
                return False
            words = {word.arg for word in call.keywords if word.arg}
            if any(KEEPS.search(name) for name in _named(inner) | words):
                return False
        if own or _named(nodes) & results:
            by_effect = isinstance(statement, ast.Expr)  # what is appended to, written into
            bound = nodes if by_effect else list(filter(stores, nodes))
            results |= _named(bound, stored=True)
    return True


def _named(nodes: Sequence[ast.AST], *, stored: bool = False) -> set[str]:
    """The names and attributes among nodes; of a part of something that is ``stored`` the whole."""
    found = set[str]()
    for node in nodes:
        while stored and isinstance(node, (ast.Subscript, ast.Starred)):
            node = node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            found.add(ast.unparse(node))
    return found


def _keeps(call: NotedLine, number: int, rows: Sequence[NotedLine], sources: ProgramFiles) -> bool:
    """Whether the program's code that runs in a call keeps something of it."""
    lines = set[FileLine]()
    for row in rows[number:]:
        if row.start_ns >= call.end_ns:
            break
        if row.line is not None and row.lane == call.lane:
            lines.add(row.line)
    for source, statement, _ in map(sources.located, lines):
        if source is None or statement is None:
            return True
        if any(map(_is_kept, source.parts[statement])):
            return True
    return False


def _is_kept(node: ast.AST) -> bool:
    """Whether something is written into an object that stays."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return bool(WRITES.fullmatch(node.func.attr)) and root(node.func.value) == "self"
    return isinstance(node, ast.Attribute) and stores(node)
