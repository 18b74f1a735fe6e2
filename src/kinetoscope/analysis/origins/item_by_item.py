"""Lines of a phase that make tensors of numbers, item by item, by the program's own source: they compute on
the host, of what was read from the device before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kinetoscope.analysis.origins.source import (
    FileLine,
    Function,
    ProgramFile,
    last_name,
    program_files,
    root,
)
from kinetoscope.analysis.passes.samples import SampleTree, function_name, where_it_is
from kinetoscope.analysis.passes.whole_run import RunPhase
from kinetoscope.recording.whole_run import SampledPlace
from kinetoscope.sources.run import LoadedRun

MAKES, MOVES = ("tensor", "as_tensor"), ("to", "cuda")
ELSEWHERE = ("set_default_device", "set_default_tensor_type")  # where all tensors may be a device's
NESTED = 2  # loops around it in its function: one may go through batches
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def item_by_item(run: LoadedRun, rank: int, phase: RunPhase) -> dict[str, float]:
    """Seconds of a phase's samples by where such a statement begins (``train.py:12``), the longest first."""
    tree, files, found = SampleTree(run.watched[rank]), program_files(run), dict[str, float]()
    if any(name in text for text in run.program.values() for name in ELSEWHERE):
        return found
    below = list(_functions(tree, phase))
    while below:
        node = below.pop()
        place = tree.place(tree.function_of(node))
        if place is not None and tree.place(node) is None:
            source, statement, function = files.located(FileLine(place.file, tree.nodes[node].line))
            if source and statement and function and _makes_tensors(source, statement, function):
                begins = where_it_is(SampledPlace(place.file, place.name, statement.lineno))
                found[begins] = found.get(begins, 0.0) + sum(tree.seconds[node])
                continue
        below += tree.children[node]
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _functions(tree: SampleTree, phase: RunPhase) -> Iterator[int]:
    """The calls of a phase's function that no other one of it is around."""
    below = list(tree.roots)
    while below:
        node = below.pop()
        place = tree.place(node)
        if place and place.file and (function_name(place), where_it_is(place)) == (phase.name, phase.where):
            yield node
        else:
            below += tree.children[node]


def _makes_tensors(source: ProgramFile, statement: ast.stmt, function: Function) -> bool:
    """Whether a statement makes tensors in nested loops, and none of them on a device."""
    calls = [part for part in source.parts[statement] if isinstance(part, ast.Call)]
    made = [one for one in calls if last_name(one.func) in MAKES and root(one.func) in source.of_torch]
    moved = any(last_name(one.func) in MOVES for one in calls)
    placed = any(keyword.arg in ("device", None) for one in made for keyword in one.keywords)
    if not made or moved or placed:
        return False
    around = [node for node in ast.walk(function) if made[0] in ast.walk(node)]
    entered = [item.context_expr for node in around if isinstance(node, ast.With) for item in node.items]
    on_device = any(not isinstance(one, ast.Call) or last_name(one.func) == "device" for one in entered)
    return not on_device and sum(isinstance(node, LOOPS) for node in around) >= NESTED
