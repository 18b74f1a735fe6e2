"""What ``kinetoscope compare`` found, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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

AIM = 0.05  # how near an answer is worth a longer budget


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
    for line in what_would_tell(found):
        console.print(Text(line, style="yellow"), soft_wrap=True)
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


def what_would_tell(found: VersionsCompared) -> Iterable[str]:
    """Why nothing could be told, where the load is the reason, and the budget that would tell."""
    if found.verdict != "cannot tell":
        return
    if found.load is not None and found.cores and found.load > found.cores + 1:  # one is the program itself
        yield (
            f"the machine is loaded ({found.load:.1f} want to run on {numbers.count(found.cores, 'core')}), "
            "and that spreads the runs: a quiet one tells sooner"
        )
    half = (found.high - found.low) / 2
    if math.isfinite(half) and half > AIM:
        seconds = found.seconds * (half / AIM) ** 2  # an interval shrinks with the root of the pairs
        time = numbers.time(seconds * 1e6)
        yield f"for ± {numbers.percent(AIM)} it needs some {time}: --budget {seconds:.0f}"


def _runs(row: VersionRow) -> str:
    return numbers.span(min(row.runs_s) * 1e6, max(row.runs_s) * 1e6)
