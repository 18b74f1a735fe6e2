"""What ``kinetoscope compare`` found, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.difference import GateRow
from kinetoscope.document.measurements import VersionRow, VersionsCompared
from kinetoscope.render import names, palette
from kinetoscope.render.json import indented
from kinetoscope.views.check import gate_lines
from kinetoscope.views.listing import grid


def render_json(found: VersionsCompared, gates: Sequence[GateRow]) -> str:
    """One document."""
    failed = [gate.gate for gate in gates if gate.failed]
    return indented({**msgspec.to_builtins(found), "gates": list(gates), "failed": failed})


def print_versions(found: VersionsCompared, gates: Sequence[GateRow], console: Console) -> None:
    """The verdict, both versions, what the machine's own noise was, the gates."""
    console.print(Text(f"{names.plain(' '.join(found.command))} on {names.plain(found.device)}", style="dim"))
    console.print(Text(verdict(found), style=f"bold {palette.verdict(found.verdict)}"))
    sides = (("base", found.base), ("new", found.new))
    console.print(
        grid(
            ("", "left", [side for side, _ in sides]),
            ("version", "left*", [names.plain(row.label) for _, row in sides]),
            ("step", "right", [numbers.time(row.step_s * 1e6) for _, row in sides]),
            ("of runs from", "right", [_runs(row) for _, row in sides]),
            ("graph breaks", "right", [f"{row.graph_breaks:,}" for _, row in sides]),
            ("peak memory", "right", [numbers.size(row.peak_memory_bytes or 0) for _, row in sides]),
        )
    )
    pairs = f"{numbers.count(found.pairs, 'pair')} of runs in {numbers.time(found.seconds * 1e6)}"
    console.print(Text(f"{pairs}; stopped: {found.stopped}", style="dim"))
    if found.calibration is not None:
        spread = numbers.percent(found.calibration.spread)
        console.print(
            Text(f"the same matrix product between the runs: ± {spread} (this machine's noise)", style="dim")
        )
    for line in gate_lines(gates):
        console.print(line, soft_wrap=True)


def verdict(found: VersionsCompared) -> str:
    """Faster or slower by how much, the same, or how far off an answer is."""
    if not math.isfinite(found.high):
        return "cannot tell: one pair of runs has no interval (--budget for more)"
    half = numbers.percent((found.high - found.low) / 2)
    change = numbers.percent(abs(found.ratio - 1))
    if found.verdict == "cannot tell":
        return f"cannot tell, ± {half}"
    if found.verdict == "same":
        return f"the same, ± {half}"
    return f"{found.verdict} by {change} ± {half}"


def _runs(row: VersionRow) -> str:
    return numbers.span(min(row.runs_s) * 1e6, max(row.runs_s) * 1e6)
