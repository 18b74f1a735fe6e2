"""What changed in the graphs' cache keys, on the terminal: ``kinetoscope graphs --against``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.compilation import KeyChange
from kinetoscope.render import names
from kinetoscope.render.table import aside

COMPONENTS = 12
LONGEST = 160


def print_key_changes(changes: Sequence[KeyChange], console: Console) -> None:
    """One paragraph a graph: the components that differ, before and after."""
    if not changes:
        console.print(Text("Every graph that both logs hold has the same cache key in both.", style="green"))
    for graph in changes:
        keys = f"{names.plain(graph.before_key or 'no key')} → {names.plain(graph.after_key or 'no key')}"
        console.print(Text.assemble((f"{graph.compile_id} {graph.direction}  ", "bold"), (keys, "dim")))
        if not graph.changes:
            console.print(aside("the logs name no components of these keys"))
        for change in graph.changes[:COMPONENTS]:
            console.print(Text(f"  {names.plain(change.component)}"))
            console.print(aside(f"- {_value(change.before)}", "red"))
            console.print(aside(f"+ {_value(change.after)}", "green"))
        if len(graph.changes) > COMPONENTS:
            more = numbers.count(len(graph.changes) - COMPONENTS, "component")
            console.print(aside(f"… and {more} more"))


def _value(text: str | None) -> str:
    if text is None:
        return "not there"
    return names.shorten(text, LONGEST)
