"""Which component of a graph's cache key changed between two logs of the same program."""

from __future__ import annotations

import re

from kinetoscope.compilation.log import records
from kinetoscope.compilation.model import CompiledGraph, CompiledProgram, ComponentChange, KeyChange

COMPONENT = re.compile(r"^\[(?P<hash>\w+)\] (?P<name>[^:\n]*)(?::\s*(?P<value>.*))?$", re.S)


def changed(before: CompiledProgram, after: CompiledProgram) -> tuple[KeyChange, ...]:
    """Graphs whose key differs, matched by compile id, direction and order."""
    earlier: dict[tuple[str, str], list[CompiledGraph]] = {}
    for graph in before.graphs:
        earlier.setdefault((graph.compile_id, graph.direction), []).append(graph)
    result: list[KeyChange] = []
    for graph in after.graphs:
        waiting = earlier.get((graph.compile_id, graph.direction))
        if not waiting:
            continue
        old = waiting.pop(0)
        if old.key == graph.key:
            continue
        result.append(
            KeyChange(
                compile_id=graph.compile_id,
                direction=graph.direction,
                before_key=old.key,
                after_key=graph.key,
                changes=tuple(_changes(_components(before, old), _components(after, graph))),
            )
        )
    return tuple(result)


def _components(compilation: CompiledProgram, graph: CompiledGraph) -> dict[str, tuple[str, str]]:
    """Name to hash and value. A repeated name is distinguished by its position among its like."""
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


def _changes(old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]) -> list[ComponentChange]:
    nothing = ("", None)
    return [
        ComponentChange(
            component=name,
            before=old.get(name, nothing)[1],
            after=new.get(name, nothing)[1],
        )
        for name in dict.fromkeys([*old, *new])
        if old.get(name, nothing)[0] != new.get(name, nothing)[0]
    ]
