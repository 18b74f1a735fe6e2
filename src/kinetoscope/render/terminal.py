"""Blocks on the terminal, whole or in a screenful: no markup, no guesses about numbers, and nothing that a
name out of a file could make the terminal do."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Literal

from msgspec import Struct
from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment as Piece
from rich.table import Table as RichTable
from rich.text import Text as RichText

from kinetoscope import numbers
from kinetoscope.render import blocks, names, palette
from kinetoscope.render.blocks import NUMERIC, Block, Cell, Column, Inline, Table, Text

WIDTH = 100  # of what does not go to a terminal
WIDEST = 200  # of what is read, on a terminal that has them
LISTING_WIDTH = 120  # of rows that do not go to a terminal, which says its width
WIDE = 120  # columns, from which bars and categories have more of them
SCREENFUL = 39  # lines: 40 with the prompt
GAP = 2  # between columns
LEAST = 28  # columns that names and wrapped text need
DEEPEST = 16  # levels that are indented: stacks of Python are deeper than a terminal is wide
CATEGORY, WIDE_CATEGORY = 13, 24  # characters
BAR, WIDE_BAR = 28, 56  # cells of the longest bar
DIFF = {"+": "green", "-": "red", "@": "cyan"}
_OVERFLOW: dict[str, OverflowMethod] = {"fold": "fold", "cut": "ellipsis", "whole": "ignore"}
ASCII = {"█": "#", "▓": "=", "▒": "+", "░": ".", "·": "-", " ": " "}


class SafeConsole(Console):
    """Shows what came out of a file, and never lets the terminal obey it: this is where all of it leaves."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Piece]:
        for piece in super().render(renderable, options):
            if piece.control or piece.text.isprintable():
                yield piece
            else:
                yield piece._replace(text=names.printable(piece.text))


def standard_output(*, widest: int | None = WIDEST) -> Console:
    """stdout: coloured on a terminal unless NO_COLOR is set, plain where it goes to a file or pipe.
    ``widest``: columns to use at most; None uses all that the terminal has. What goes elsewhere has as many
    as COLUMNS says, or else fewer: ``WIDTH``, or ``LISTING_WIDTH`` with None."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a name gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    elsewhere = LISTING_WIDTH if widest is None else WIDTH
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    own = shutil.get_terminal_size((WIDTH, 24)).columns if known else elsewhere
    width = min(own, widest or own)
    return SafeConsole(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def show(shown: Iterable[Block], console: Console | None = None) -> None:
    """Print blocks; on standard output, as a listing of any width, if no console is given."""
    console = console or standard_output(widest=None)
    # Tables keep to the width; only what must be right when it is copied may run past it.
    console.print(_Trimmed(Group(*_drawn(shown, console))), markup=False, crop=False)


def text(shown: Iterable[Block], width: int = WIDTH) -> str:
    stream = io.StringIO()
    show(
        shown,
        SafeConsole(file=stream, width=width, color_system=None, highlight=False, markup=False, emoji=False),
    )
    return stream.getvalue()


Section = Callable[[int], Iterable[Block]]  # at most so many rows, at least one


class Screen(Struct, frozen=True):
    """How sections share a first screen."""

    least: Mapping[str, int]  # the rows that a section has where there is room; of one that is not named none
    # sections and the rows to leave them where even that is too much, one after the other
    less: Sequence[tuple[str, int]]
    # sections and the rows to give them, what matters most first; each is taken where it fits
    more: Sequence[tuple[str, int]]

    def show(self, sections: Mapping[str, Section], console: Console) -> None:
        """Print the sections in their order, in a screenful where the least of them allows that."""
        shown = self._fitting(sections, console)
        console.print(_Trimmed(Group(*shown)), markup=False, crop=False)

    def _fitting(self, sections: Mapping[str, Section], console: Console) -> list[RenderableType]:
        @cache
        def drawn(name: str, rows: int) -> tuple[RenderableType, int]:
            shown = _drawn(sections[name](rows), console, is_screen=True) if rows else ()
            section = Group(*shown)
            return section, _height(section, console)

        def fits(rows: Mapping[str, int]) -> bool:
            return sum(drawn(*item)[1] for item in rows.items()) <= SCREENFUL

        rows = {name: self.least.get(name, 0) for name in sections}
        for name, wanted in self.less:
            if name in sections and not fits(rows):
                rows[name] = wanted
        for name, wanted in self.more:
            tried = rows | {name: wanted}
            if name in sections and fits(tried):
                rows = tried
        return [drawn(*item)[0] for item in rows.items()]


def _height(section: RenderableType, console: Console) -> int:
    """Lines on the screen; what is never folded by us the terminal folds."""
    lines = Piece.split_lines(console.render(section))
    lengths = (len("".join(piece.text for piece in line).rstrip()) for line in lines)
    return sum(max(1, -(-length // console.width)) for length in lengths)


class _Trimmed(Struct, frozen=True):
    """Lines without the blanks that fill them up: files and the clipboard do not need them."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Piece.split_lines(console.render(self.shown, options)):
            pieces = list(line)
            while pieces and not pieces[-1].text.strip(" "):
                del pieces[-1]
            if pieces:
                pieces[-1] = pieces[-1]._replace(text=pieces[-1].text.rstrip(" "))
            yield from pieces
            yield Piece.line()


def _drawn(shown: Iterable[Block], console: Console, *, is_screen: bool = False) -> Iterable[RenderableType]:
    look = _Look(not console.encoding.startswith("utf"), console.width >= WIDE, is_screen)
    for block in shown:
        yield from _block(block, look, console)


class _Look(Struct, frozen=True):
    ascii_only: bool
    is_wide: bool
    is_screen: bool  # on a first screen, whose last line says what shows the rest


def _block(block: Block, look: _Look, console: Console) -> Iterable[RenderableType]:
    match block:
        case blocks.Heading():
            if block.level > 1:
                yield RichText()
            basis = f"  {names.safe(block.basis)}" if block.basis else ""
            yield RichText.assemble((names.safe(block.title), "bold"), (basis, "dim"))
        case blocks.Prose() | blocks.Line() | blocks.Items():
            yield _paragraph(block)
        case blocks.Status():
            marks = ("!", "+") if look.ascii_only else ("⚠", "✓")
            yield RichText(f"{marks[block.is_good]} {names.safe(block.text)}", style=block.style)
        case blocks.Table():
            yield from _table(block, look, console)
        case blocks.Labelled():
            yield from _labelled(block)
        case blocks.Commands():
            lines = [(names.plain(line), shows) for line, shows in block.items]
            longest = max((len(shows) for _, shows in lines), default=0)
            for line, shows in lines:
                is_below = longest + GAP + len(line) > console.width
                if is_below:
                    yield RichText(shows, style="dim")
                before = " " * GAP if is_below else f"{shows:{longest + GAP}}"
                yield RichText.assemble((before, "dim"), (line, "cyan"), no_wrap=True, overflow="ignore")
        case blocks.Code():
            yield from _code(block)
        case blocks.Only():
            if block.medium == "screen":
                yield from _block(block.block, look, console)


def _labelled(block: blocks.Labelled) -> Iterable[RenderableType]:
    """Paragraphs next to their labels; a line that is kept whole stands outside, as columns would cut it."""
    width = max((len(label.text) for label, _ in block.items), default=0)
    for is_whole, items in groupby(block.items, lambda item: _is_whole(item[1])):
        grid = _columns("left", "left*")
        grid.columns[0].min_width = width
        for label, body in items:
            if is_whole:
                start = _rich((label,))
                start.pad_right(width + GAP - len(start))
                for line in body:
                    assert isinstance(line, blocks.Line)
                    parts = " " * block.indent, start, _rich(line.parts)
                    yield RichText.assemble(*parts, no_wrap=True, overflow="ignore")
            else:
                inner = tuple(map(_paragraph, body))
                grid.add_row(_rich((label,)), inner[0] if len(inner) == 1 else Group(*inner))
        if not is_whole:
            yield Padding(grid, (0, 0, 0, block.indent)) if block.indent else grid


def _is_whole(body: Sequence[blocks.Prose | blocks.Line | blocks.Items]) -> bool:
    return all(isinstance(line, blocks.Line) and line.overflow == "whole" for line in body)


def _paragraph(block: blocks.Prose | blocks.Line | blocks.Items) -> RenderableType:
    match block:
        case blocks.Prose():
            return _Prose(block.text, block.style)
        case blocks.Items():
            grid = _columns("left", "left*")
            for item in block.items:
                grid.add_row(RichText("  -"), RichText(names.safe(item)))
            return grid
        case blocks.Line():
            words = _rich(block.parts)
            words.overflow = _OVERFLOW[block.overflow]
            words.no_wrap = block.overflow != "fold"
            return Padding(words, (0, 0, 0, block.indent)) if block.indent else words


def _code(block: blocks.Code) -> Iterable[RenderableType]:
    text = names.printable(block.text)
    if block.language == "python":
        from rich.syntax import Syntax  # Pygments takes as long to load as all of Rich

        yield Syntax(text, "python", background_color="default", word_wrap=True)
    else:
        for line in text.splitlines():
            yield RichText(line, style=DIFF.get(line[:1], "dim") if block.language else "cyan")
    yield from (_paragraph(line) for line in blocks.rest(block.more, "line"))


def _rich(parts: Sequence[Inline]) -> RichText:
    styled = [Text(part) if isinstance(part, str) else part for part in parts]
    words = RichText()
    for part in styled:
        words.append(names.safe(part.text), style=part.style or None)
    return words


def _table(table: Table, look: _Look, console: Console) -> Iterable[RenderableType]:
    visible = [index for index, column in enumerate(table.columns) if column.only != "page"]
    columns = [table.columns[index] for index in visible]
    leave = None if table.leave is None else [visible.index(index) for index in table.leave]
    grid = _columns(*map(_side, columns), leave=leave)
    if table.heads and any(column.title for column in columns):
        grid.show_header = True
        for column, own in zip(grid.columns, columns, strict=True):
            column.header = RichText(names.safe(own.title), style="dim")
    for row in table.rows:
        cells = [
            _cell(row[index], column, table, look) for index, column in zip(visible, columns, strict=True)
        ]
        grid.add_row(*cells)
    if table.whole and grid.absent(console, console.options):
        yield from _records(table)
        return
    yield grid
    if not look.is_screen and (absent := grid.absent(console, console.options)):
        listed = ", ".join(columns[index].title for index in absent if columns[index].title)
        if listed:
            yield RichText(f"no room here for {listed}: a wider terminal has it", style="dim")
    yield from (_paragraph(line) for line in blocks.rest(table.more, table.noun))


def _records(table: Table) -> Iterable[RenderableType]:
    """A row a block: a value a line, behind its column's title."""
    for number, row in enumerate(table.rows, 1):
        yield RichText(f"row {number}", style="bold")
        grid = _columns("left", "left*")
        for column, value in zip(table.columns, row, strict=True):
            grid.add_row(RichText(column.title), RichText(str(value), overflow="fold"))
        yield grid


def _side(column: Column) -> str:
    if column.kind in NUMERIC:
        return "right"
    return "left*" if column.kind in ("words", "name") else "left"


def _cell(value: Cell, column: Column, table: Table, look: _Look) -> RenderableType:
    words = blocks.written(value, column, table.heads)
    match words:
        case tuple() if column.kind == "bar":
            segments = [part for part in words if isinstance(part, blocks.Segment)]
            return _length(segments[0], look) if len(segments) == 1 else _bar(segments, look)
        case tuple():
            inline = _rich([part for part in words if isinstance(part, str | Text)])
            if column.kind == "name":
                inline.no_wrap, inline.overflow = True, "ellipsis"
            return inline
        case Text():
            own = words
        case _:
            own = Text(str(words))
    style = own.style or column.style
    if column.kind == "category":
        width = WIDE_CATEGORY if look.is_wide else CATEGORY
        return RichText(names.shorten(own.text, width), style=style or palette.category(own.text))
    if column.kind == "name":
        return _Name(names.plain(own.text), style, own.depth)
    return RichText(names.safe(own.text), style=style, overflow="fold" if table.whole else None)


def _bar(segments: Sequence[blocks.Segment], look: _Look) -> RichText:
    width = 40 if look.is_wide else 20
    bar = RichText()
    drawn, edge = 0, 0.0
    for segment in segments:
        # Each edge is rounded, not each length: the bar always has its whole width.
        edge += segment.share
        cells = round(edge * width) - drawn
        bar.append((ASCII[segment.fill] if look.ascii_only else segment.fill) * cells, style=segment.colour)
        drawn += cells
    return bar


def _length(segment: blocks.Segment, look: _Look) -> RichText:
    """A bar among other bars, to an eighth of a cell."""
    eighths = max(round(segment.share * (WIDE_BAR if look.is_wide else BAR) * 8), 1)
    if look.ascii_only:
        return RichText("#" * max(eighths // 8, 1), style=segment.colour)
    bar = "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return RichText(bar, style=segment.colour)


class _Fitting(RichTable):
    """A table whose columns leave, one after the other, where the width is not enough for what they hold.

    Digits are never cut: a number is shown whole or, with its column, not at all. Names shorten last.
    """

    leave: Sequence[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self.columns
        gone = self.absent(console, options)
        kept = [column for index, column in enumerate(whole) if index not in gone]
        self.columns = [replace(column, _index=index) for index, column in enumerate(kept)]
        yield from super().__rich_console__(console, options)
        self.columns = whole

    def absent(self, console: Console, options: ConsoleOptions) -> list[int]:
        gone: set[int] = set()
        for column in self.leave:
            if self._needed(console, options, gone) <= options.max_width:
                break
            gone.add(column)
        return sorted(gone)

    def _needed(self, console: Console, options: ConsoleOptions, gone: Set[int]) -> int:
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


def _columns(*sides: str, leave: Sequence[int] | None = None) -> _Fitting:
    """A table without lines; columns marked with ``*`` give way where the width is not enough."""
    table = _Fitting(box=None, show_header=False, header_style="", pad_edge=False, padding=(0, GAP, 0, 0))
    table.leave = range(len(sides) - 1, 0, -1) if leave is None else leave
    for side in sides:
        justify: Literal["left", "right"] = "left" if side.startswith("left") else "right"
        table.add_column(justify=justify, no_wrap=not side.endswith("*"), overflow="ellipsis")
    return table


class _Name(Struct, frozen=True):
    """A name from the trace behind its indentation, shortened in its middle to the width of its column."""

    text: str
    style: str = ""
    depth: int = 0

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        indent = len(self._indent())
        least = 16 if self.depth else LEAST
        return Measurement(indent + min(least, len(self.text)), indent + len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self._indent()
        name = names.shorten(self.text, options.max_width - len(indent))
        yield RichText.assemble((indent, "dim"), (name, self.style), no_wrap=True)

    def _indent(self) -> str:
        return "   " * (min(self.depth, DEEPEST) - 1) + "└─ " if self.depth else ""


class _Prose(Struct, frozen=True):
    """Sentences, wrapped between words but never between a number and its unit."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = textwrap.wrap(numbers.together(names.safe(self.text)), options.max_width)
        yield RichText("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "), style=self.style)
