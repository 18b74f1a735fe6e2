"""Tables and sentences on the terminal: no lines, numbers to the right, names that give way."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.render import names
from kinetoscope.views.ranks import Grid

GAP = 2  # between columns
LEAST = 28  # columns that names and wrapped text need


def heading(title: str, basis: str = "") -> Iterable[Text]:
    """A section's title, and what its numbers are of."""
    yield Text()
    yield Text.assemble((title, "bold"), (f"  {basis}" if basis else "", "dim"))


def aside(text: str, style: str = "dim", indent: int = 4) -> RenderableType:
    """A remark on the row above."""
    return Padding(Text(names.plain(text), style=style), (0, 0, 0, indent))


def rest(more: int, noun: str) -> Iterable[Text]:
    """A line that says how many rows were left out; none when none were."""
    if more > 0:
        yield Text(f"… and {numbers.count(more, noun)} more", style="dim")


class Fitting(Table):
    """A table whose columns leave, one after the other, where the width is not enough for what they hold.

    Digits are never cut: a number is shown whole or, with its column, not at all. Names shorten last.
    """

    leave: Sequence[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self.columns
        gone: set[int] = set()
        for column in self.leave:
            if self._needed(console, options, gone) <= options.max_width:
                break
            gone.add(column)
        kept = [column for index, column in enumerate(whole) if index not in gone]
        self.columns = [replace(column, _index=index) for index, column in enumerate(kept)]
        yield from super().__rich_console__(console, options)
        self.columns = whole

    def fits(self, console: Console, options: ConsoleOptions) -> bool:
        """Whether all columns have room."""
        return self._needed(console, options, set()) <= options.max_width

    def _needed(self, console: Console, options: ConsoleOptions, gone: set[int]) -> int:
        """The least width of the columns that are left, and of what stands between them."""
        widths = [
            max(
                (_least(console, options, cell, column.no_wrap) for cell in (column.header, *column.cells)),
                default=0,
            )
            for index, column in enumerate(self.columns)
            if index not in gone
        ]
        return sum(widths) + GAP * (len(widths) - 1)


def _least(console: Console, options: ConsoleOptions, cell: RenderableType, no_wrap: bool) -> int:
    measured = Measurement.get(console, options.update(max_width=1000), cell)
    return measured.maximum if no_wrap else min(measured.minimum, LEAST)


def columns(*justify: str, leave: Sequence[int] | None = None) -> Fitting:
    """A table without lines; columns marked with ``*`` give way where the width is not enough.

    Args:
        leave: the columns that may leave where that is still too much, the first to go first; if not given,
            all but the first, from the right.
    """
    table = Fitting(box=None, show_header=False, header_style="", pad_edge=False, padding=(0, GAP, 0, 0))
    table.leave = range(len(justify) - 1, 0, -1) if leave is None else leave
    for column in justify:
        side: Literal["left", "right"] = "left" if column.startswith("left") else "right"
        table.add_column(justify=side, no_wrap=not column.endswith("*"), overflow="ellipsis")
    return table


@dataclass(frozen=True)
class Name:
    """A name from the trace, shortened in its middle to the width that its column has."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(LEAST, len(self.text)), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(names.shorten(self.text, options.max_width), no_wrap=True)


@dataclass(frozen=True)
class Prose:
    """Sentences, wrapped between words but never between a number and its unit."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = textwrap.wrap(numbers.together(self.text), options.max_width)
        yield Text("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "), style=self.style)


def heads(table: Table, *headers: str) -> None:
    """Give the columns their heads."""
    table.show_header = True
    for column, header in zip(table.columns, headers, strict=True):
        column.header = Text(header, style="dim")


def drawn(shown: Grid) -> Fitting:
    """A grid of words, its first column to the left."""
    table = columns("left", *("right" for _ in shown.heads[1:]))
    heads(table, *shown.heads)
    for row in shown.rows:
        table.add_row(*(Text(names.plain(cell)) for cell in row))
    return table
