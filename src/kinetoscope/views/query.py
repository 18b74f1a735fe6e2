"""Rows of a query: any columns, every value whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Column, Heading, Labelled, Table, Text, line

LONGEST = 72  # characters of a title


def listing(titles: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose missing values are dashes."""
    columns = [
        Column(names.shorten(title, LONGEST), "number" if number else "words")
        for title, number in zip(titles, numeric, strict=True)
    ]
    return Table(tuple(columns), [tuple(map(_cell, row)) for row in rows], whole=True)


def columns(rows: Iterable[Mapping[str, str]]) -> Iterable[Block]:
    """The tables that a query may name: each column with its type and meaning."""
    for table, of_table in groupby(rows, lambda row: row["table"]):
        known = list(of_table)
        width = max(len(row["column"]) for row in known)
        yield Heading(table, level=1)
        labels = (Text(f"{row['column']:<{width}}  {row['type']:<7}") for row in known)
        meanings = ((line(row["meaning"]),) for row in known)
        yield Labelled(tuple(zip(labels, meanings, strict=True)), indent=2)


def _cell(value: object) -> str | None:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    if value is None:
        return None
    text = names.whole(str(value))
    # At the start of a line, blanks aside, a workflow of GitHub obeys it.
    return f"·{text}" if text.lstrip().startswith("::") else text
