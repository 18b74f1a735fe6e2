"""Tables and sentences on the terminal: no lines, numbers to the right, names that give way."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.report.words import names


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


def columns(*justify: str) -> Table:
    """A table without lines; columns marked with ``*`` give way where the width is not enough."""
    table = Table(box=None, show_header=False, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for column in justify:
        side: Literal["left", "right"] = "left" if column.startswith("left") else "right"
        table.add_column(justify=side, no_wrap=not column.endswith("*"), overflow="ellipsis")
    return table


@dataclass(frozen=True)
class Name:
    """A name from the trace, shortened in its middle to the width that its column has."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(16, len(self.text)), len(self.text))

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
