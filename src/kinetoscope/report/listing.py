"""A plain table of values on the terminal, for verbs that print rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kinetoscope.report import names

LONGEST = 72  # characters of one cell


def print_rows(
    console: Console, columns: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[object]]
) -> None:
    """Print ``rows`` under ``columns``; numeric ones align to the right. Missing values show as ``–``."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, number in zip(columns, numeric, strict=True):
        table.add_column(
            Text(names.shorten(name, LONGEST)),
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return names.shorten(str(value), LONGEST)
