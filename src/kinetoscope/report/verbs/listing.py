"""A plain table of values on the terminal, for verbs that print rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kinetoscope.report.pages.table import Name, columns, heads
from kinetoscope.report.words import names

LONGEST = 72  # characters of one cell


def print_rows(
    console: Console, headers: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[object]]
) -> None:
    """Print ``rows`` under ``headers``; numeric ones align to the right. Missing values show as ``–``."""
    table = columns(*("right" if number else "left*" for number in numeric))
    heads(table, *(names.shorten(name, LONGEST) for name in headers))
    for row in rows:
        table.add_row(
            *(
                Text(_cell(value)) if number else Name(_cell(value))
                for value, number in zip(row, numeric, strict=True)
            )
        )
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return names.shorten(str(value), LONGEST)
