"""The parts of views: typed blocks that every renderer draws and no renderer knows the subject of.

A style is words that terminals and browsers both have: ``bold``, ``dim``, ``green``, ``yellow``, ``red``,
``blue``, ``cyan``, or a colour as ``#rrggbb``; several stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from kinetoscope import numbers

# What views share.
__all__ = [
    "Block", "Cell", "Code", "Column", "Commands", "Field", "Heading", "Inline", "Items", "Labelled",
    "Line", "Only", "Prose", "Segment", "Status", "Table", "Target", "Text", "field", "kernel",
    "left_out", "line", "place", "plain", "rest", "stacked_bar", "table", "written",
]  # fmt: skip

Target = Literal[
    "", "kernel", "op", "line", "event", "finding", "command", "graph", "category", "time", "stack", "part"
]
# time: µs; change: the same with its sign; share: a fraction of one; words are wrapped, a name is shortened
# in its middle, text is neither.
Kind = Literal[
    "text", "words", "name", "category", "time", "change", "share", "count", "bytes", "number", "bar"
]
Medium = Literal["", "screen", "page"]
NUMERIC: frozenset[Kind] = frozenset({"time", "change", "share", "count", "bytes", "number"})


class Text(msgspec.Struct, frozen=True, tag=True):
    """Words of one style; a link to ``target`` (a kernel's full name, a finding's slug, ``begin,end`` in µs,
    …) where links exist; a stack is its lines, a part that of a page."""

    text: str
    style: str = ""
    kind: Target = ""
    target: str = ""
    depth: int = 0  # levels of a tree that stand above it


class Segment(msgspec.Struct, frozen=True, tag=True):
    """A part of a bar: its share (0 to 1), its colour, its letter without one, what a page says of it."""

    share: float
    colour: str
    fill: str = "█"
    label: str = ""


Inline = str | Text
# A tuple is a figure or words with what is added to them, in dim words of their own; or a bar.
Cell = str | float | None | Text | tuple[str | float | Text | Segment, ...]


class Column(msgspec.Struct, frozen=True):
    title: str
    kind: Kind = "text"
    style: str = ""
    noun: str = ""  # follows each number where the table shows no titles: ``3 launches``
    only: Medium = ""  # the medium that shows it; all do by default


class Heading(msgspec.Struct, frozen=True, tag=True):
    """A title, and what its numbers are of; one of level 1 begins a page."""

    title: str
    basis: str = ""
    level: int = 2
    style: str = ""
    folded: bool = False  # a page folds what follows, up to the next title


class Prose(msgspec.Struct, frozen=True, tag=True):
    """Sentences, wrapped between words but never between a number and its unit."""

    text: str
    style: str = ""


class Line(msgspec.Struct, frozen=True, tag=True):
    """Words on one line: ``fold`` continues a long one on the next, ``cut`` shortens it, ``whole`` is for
    what must be right when it is copied."""

    parts: tuple[Inline, ...] = ()
    indent: int = 0
    overflow: Literal["fold", "cut", "whole"] = "fold"


class Status(msgspec.Struct, frozen=True, tag=True):
    """A sentence behind a mark: all is well, or it is not."""

    text: str
    is_good: bool
    style: str = ""


class Items(msgspec.Struct, frozen=True, tag=True):
    items: tuple[str, ...]


class Table(msgspec.Struct, frozen=True, tag=True):
    """Rows of cells, one a column; ``more`` rows of them were left out."""

    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    more: int = 0
    noun: str = "row"
    # indices of the columns that may leave where a screen is narrow, the first to go first; None: all but the
    # first, from the right
    leave: tuple[int, ...] | None = None
    heads: bool = True  # the columns' titles are shown on screens too
    whole: bool = False  # no value is shortened: a record is a block of its own where the columns do not fit


class Labelled(msgspec.Struct, frozen=True, tag=True):
    """Paragraphs, each behind a label."""

    items: tuple[tuple[Text, tuple[Prose | Line | Items, ...]], ...]
    indent: int = 0


class Commands(msgspec.Struct, frozen=True, tag=True):
    """Command lines worth typing, each with what it shows; never folded or shortened."""

    items: tuple[tuple[str, str], ...]


class Code(msgspec.Struct, frozen=True, tag=True):
    """A text with its lines and indentation; ``more`` lines of it were left out."""

    text: str
    language: Literal["", "python", "diff"] = ""
    title: str = ""
    more: int = 0


class Only(msgspec.Struct, frozen=True, tag=True):
    """A block that one medium alone shows: a screen has few lines, a page has room."""

    medium: Medium
    block: Prose | Line | Table | Items | Heading | Status


Block = Heading | Prose | Line | Status | Items | Table | Labelled | Commands | Code | Only
Field = tuple[Column, str | Callable[[Any], Cell]]


def field(
    title: str,
    kind: Kind = "text",
    get: str | Callable[[Any], Cell] = "",
    style: str = "",
    *,
    noun: str = "",
    only: Medium = "",
) -> Field:
    """A column and where a row's cell comes from: an attribute's name, or a function of the row."""
    return Column(title, kind, style, noun, only), get


def table(
    rows: Iterable[object],
    *fields: Field | None,
    most: int = 0,
    noun: str = "row",
    leave: tuple[int | str, ...] | None = None,
    heads: bool = True,
) -> Table:
    """A table of objects, a row each: ``most`` of them (0: all). None among the fields is no column; those
    that ``leave`` a narrow screen, by their titles or places, may be none."""
    known = [one for one in fields if one is not None]
    places = {column.title: place for place, (column, _) in enumerate(known)}
    gone = [places.get(one) if isinstance(one, str) else one for one in leave or ()]
    listed = list(rows)
    shown = listed[:most] if most else listed
    return Table(
        tuple(column for column, _ in known),
        [tuple(getattr(row, get) if isinstance(get, str) else get(row) for _, get in known) for row in shown],
        len(listed) - len(shown),
        noun,
        None if leave is None else tuple(place for place in gone if place is not None),
        heads,
    )


def line(*parts: Inline, style: str = "", indent: int = 0) -> Line:
    """A line of words; ``style`` is of the parts that are plain strings."""
    return Line(tuple(Text(part, style) if isinstance(part, str) else part for part in parts), indent)


def stacked_bar(segments: Iterable[Segment]) -> Only:
    """A whole cut into its parts, for the page alone: elsewhere the table below it says the same."""
    return Only("page", Table((Column("", "bar"),), [(tuple(segments),)]))


def rest(more: int, noun: str) -> list[Line]:
    """A line that says how many were left out; none where none were."""
    return [line(left_out(more, noun), style="dim")] if more > 0 else []


def left_out(more: int, noun: str) -> str:
    return f"… and {numbers.count(more, noun)} more"


def kernel(name: str, short_name: str = "", style: str = "") -> Text:
    return Text(short_name or name, style, "kernel", name)


def place(source: str | None, style: str = "") -> Text:
    """A line of the program: ``file.py:12``."""
    return Text(source or "", style, "line" if source else "", source or "")


def written(value: Cell, column: Column, heads: bool = True) -> Cell:
    """A cell as words: numbers with the unit of their column; what is missing is a dash."""
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return tuple(str(written(part, column)) if isinstance(part, int | float) else part for part in value)
    if not isinstance(value, int | float):
        return value
    noun = "" if heads else column.noun
    match column.kind:
        case "time":
            text = numbers.time(value)
        case "change":
            text = numbers.signed(value)
        case "share":
            text = numbers.percent(value)
        case "bytes":
            text = numbers.size(value)
        case "count":
            return numbers.count(int(value), noun)
        case _:
            text = str(value)
    return f"{text} {noun}" if noun else text


def plain(parts: Sequence[Inline]) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in parts)
