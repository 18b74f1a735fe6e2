"""Tables on the terminal, for verbs that print rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from kinetoscope.render import names
from kinetoscope.render.table import Fitting, columns, heads

LONGEST = 72  # characters of a head


def grid(*wanted: tuple[str, str, Iterable[RenderableType]] | None) -> Fitting:
    """A table of columns: each its head, its side as ``columns`` takes it, its cells. None is no column."""
    shown = [column for column in wanted if column is not None]
    table = columns(*(side for _, side, _ in shown))
    if any(head for head, _, _ in shown):
        heads(table, *(head for head, _, _ in shown))
    for row in zip(*(cells for _, _, cells in shown), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def titled(title: str, basis: str) -> Text:
    """A title, and what its numbers are of."""
    return Text.assemble((title, "bold"), (f"  {basis}", "dim"))


def print_rows(
    console: Console, headers: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[object]]
) -> None:
    """Print ``rows`` under ``headers``, values whole; a record a block where columns do not fit side by side.

    Numbers align to the right. Missing values show as ``–``.
    """
    heads = [names.shorten(head, LONGEST) for head in headers]
    cells = [[_cell(value) for value in row] for row in rows]
    table = grid(
        *(
            (head, "right" if number else "left*", [Text(row[at], overflow="fold") for row in cells])
            for at, (head, number) in enumerate(zip(heads, numeric, strict=True))
        )
    )
    if table.fits(console, console.options):
        console.print(table)
        return
    for number, row in enumerate(cells, 1):
        console.print(Text(f"row {number}", style="bold"))
        console.print(
            grid(("", "left", heads), ("", "left*", [Text(value, overflow="fold") for value in row]))
        )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return names.whole(str(value))
