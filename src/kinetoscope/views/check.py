"""What ``kinetoscope check`` shows: every gate, and who failed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from kinetoscope.document.difference import GateRow
from kinetoscope.render import names
from kinetoscope.render.json import indented


def render_json(gates: Sequence[GateRow]) -> str:
    """One document: the gates, and the expressions of those that failed."""
    rows = [msgspec.to_builtins(gate) for gate in gates]
    return indented({"gates": rows, "failed": [gate.gate for gate in gates if gate.failed]})


def print_check(gates: Sequence[GateRow], console: Console) -> None:
    """Those that failed first, then in one line those that did not."""
    failed = [gate for gate in gates if gate.failed]
    for line in gate_lines(failed):
        console.print(line, soft_wrap=True)
    passed = [gate.gate for gate in gates if not gate.failed]
    if passed:
        console.print(Text(f"passed: {', '.join(passed)}", style="green"), soft_wrap=True)


def gate_lines(gates: Iterable[GateRow]) -> Iterable[Text]:
    """A line a gate, and one below it for who failed it."""
    for gate in gates:
        line = Text("FAILED  " if gate.failed else "passed  ", style="bold red" if gate.failed else "green")
        line.append(f"{gate.gate}: {names.plain(gate.words)}", style="not bold")
        yield line
        if gate.culprit:
            place = f" ({names.plain(gate.source)})" if gate.source else ""
            yield Text(f"        {names.plain(gate.culprit)}{place}", no_wrap=True, overflow="ellipsis")
