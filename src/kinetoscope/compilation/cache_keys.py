"""Which component of a graph's cache key changed between two logs of the same program."""

from __future__ import annotations

import re

from kinetoscope.compilation.log import records
from kinetoscope.compilation.model import Compilation, Graph, Row

COMPONENT = re.compile(r"^\[(?P<hash>\w+)\] (?P<name>[^:\n]*)(?::\s*(?P<value>.*))?$", re.S)


class Change(Row, frozen=True, kw_only=True):
    """One component of one graph's key, in both logs; None: not there."""

    compile_id: str
    direction: str
    component: str
    before: str | None
    after: str | None


class GraphChange(Row, frozen=True, kw_only=True):
    """Two logs' keys of the same graph; no ``changes`` where the log names no components."""

    compile_id: str
    direction: str
    before_key: str | None
    after_key: str | None
    changes: tuple[Change, ...]


def changed(before: Compilation, after: Compilation) -> tuple[GraphChange, ...]:
    """Graphs whose key differs, matched by compile id, direction and order; the same graph under one key is left out."""
    earlier: dict[tuple[str, str], list[Graph]] = {}
    for graph in before.graphs:
        earlier.setdefault((graph.compile_id, graph.direction), []).append(graph)
    result: list[GraphChange] = []
    for graph in after.graphs:
        waiting = earlier.get((graph.compile_id, graph.direction))
        if not waiting:
            continue
        old = waiting.pop(0)
        if old.key == graph.key:
            continue
        result.append(
            GraphChange(
                compile_id=graph.compile_id,
                direction=graph.direction,
                before_key=old.key,
                after_key=graph.key,
                changes=tuple(_changes(graph, _components(before, old), _components(after, graph))),
            )
        )
    return tuple(result)


def _components(compilation: Compilation, graph: Graph) -> dict[str, tuple[str, str]]:
    """Name to hash and value. A repeated name is told apart by its position among its like."""
    text = compilation.cache_records.get(graph.index)
    decoded = text.log.json(text.record, records.cache_components) if text else None
    found: dict[str, tuple[str, str]] = {}
    for component in (decoded.components if decoded else None) or ():
        match = COMPONENT.match(component)
        if match:
            name = match["name"].strip()
            number = sum(1 for known in found if known == name or known.startswith(f"{name} #"))
            found[f"{name} #{number + 1}" if number else name] = (match["hash"], match["value"] or "")
    return found


def _changes(graph: Graph, old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]) -> list[Change]:
    nothing = ("", None)
    return [
        Change(
            compile_id=graph.compile_id,
            direction=graph.direction,
            component=name,
            before=old.get(name, nothing)[1],
            after=new.get(name, nothing)[1],
        )
        for name in dict.fromkeys([*old, *new])
        if old.get(name, nothing)[0] != new.get(name, nothing)[0]
    ]
