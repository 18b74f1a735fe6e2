"""What `tune` found, on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kinetoscope.bench.tuning_rows import Row, Tuning
from kinetoscope.report import names, numbers, palette
from kinetoscope.report.table import columns, heads


def print_tuning(found: Tuning, console: Console) -> None:
    """The settings side by side, and what to do."""
    head = f"Step time of {' '.join(found.command) or found.step_name} on {found.device}"
    basis = f"  steps by {found.steps_by} ({found.step_name}); {found.rounds} rounds; speed-up over eager, 95 % interval"
    console.print(Text.assemble((names.plain(head), "bold"), (names.plain(basis), "dim")))
    table = columns("left*", *["right"] * 8, "left")
    heads(
        table,
        "setting",
        "step",
        "speed-up",
        "interval",
        "compile",
        "breaks even after",
        "memory",
        "breaks",
        "output",
        "",
    )
    for row in found.rows:
        if row.error is not None:
            table.add_row(Text(row.label), *[""] * 8, Text(names.plain(row.error)[:80], style="red"))
            continue
        table.add_row(
            Text(row.label),
            Text(numbers.time((row.step_s or 0) * 1e6)),
            Text(f"{1 / row.ratio:.3f}×" if row.ratio else ""),
            Text(_interval(row)),
            Text(numbers.time(row.compile_s * 1e6) if row.compile_s is not None else ""),
            Text(f"{row.break_even_steps:,} steps" if row.break_even_steps is not None else ""),
            Text(numbers.size(row.peak_memory_bytes) if row.peak_memory_bytes else ""),
            Text(str(row.graph_breaks)),
            Text(_agreement(row)),
            Text(row.verdict or "", style=palette.verdict(row.verdict)),
        )
    console.print(table)
    console.print()
    console.print(Text(names.plain(found.recommendation), style="bold"))
    for line in found.lines:
        console.print(Text("    " + names.plain(line)))


def _interval(row: Row) -> str:
    if row.low is None or row.high is None or row.low <= 0:
        return "one round" if row.ratio else ""
    low, high = 1 / row.high, 1 / row.low
    return f"{low:.3f}–{high:.3f}" if high < 100 else "too few rounds"


def _agreement(row: Row) -> str:
    if row.agrees is None:
        return "–"
    return "agrees" if row.agrees else "DIFFERS"
