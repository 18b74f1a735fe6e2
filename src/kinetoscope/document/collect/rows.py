"""Tables as rows of the document: each field takes its column, nanoseconds become microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import TypeVar

import msgspec
import polars as pl

Row = TypeVar("Row", bound=msgspec.Struct)

_MICROSECONDS = re.compile(r"_us(?=_|$)")
_fields = cache(msgspec.structs.fields)  # it evaluates the annotations of the class, every time


def rows(
    table: pl.DataFrame, kind: type[Row], renamed: Mapping[str, str] = {}, **given: Iterable[object]
) -> list[Row]:
    """One ``kind`` for each of the table's rows.

    A field takes the column of its name; ``x_us`` takes ``x_ns``, divided by 1000, and ``x_us_of_y`` likewise
    ``x_ns_of_y``. ``renamed``: field → column, where their names differ. ``given``: values of fields that the
    table has no column for, in its order. Raises ColumnNotFoundError where a field has no column, and its
    values are not given, ValidationError where a column holds what its field does not.
    """
    fields = dict(given)
    for field in _fields(kind):
        if field.name not in given:
            column = renamed.get(field.name) or _MICROSECONDS.sub("_ns", field.name)
            values = table[column].to_list()
            if _MICROSECONDS.search(field.name):
                values = [None if value is None else value / 1000 for value in values]
            fields[field.name] = msgspec.convert(values, list[field.type])
    names = tuple(fields)
    return [kind(**dict(zip(names, values, strict=True))) for values in zip(*fields.values(), strict=True)]


def row(kind: type[Row], source: object, **given: object) -> Row:
    """One row of an object's attributes, likewise; those that it lacks are given, or have a default."""
    for field in kind.__struct_fields__:
        in_ns = _MICROSECONDS.sub("_ns", field)
        if field not in given and hasattr(source, field):
            given[field] = getattr(source, field)
        elif field not in given and hasattr(source, in_ns):
            given[field] = getattr(source, in_ns) / 1000
    return kind(**given)


def rows_by(
    table: pl.DataFrame, key: str, kind: type[Row], renamed: Mapping[str, str] = {}
) -> dict[object, list[Row]]:
    found: dict[object, list[Row]] = {}
    for value, made in zip(table[key], rows(table, kind, renamed), strict=True):
        found.setdefault(value, []).append(made)
    return found


def rows_within(column: pl.Series, kind: type[Row]) -> list[list[Row]]:
    lists = column.list.len()
    made = iter(rows(column.filter(lists > 0).explode().struct.unnest(), kind))
    return [list(islice(made, length)) for length in lists]
