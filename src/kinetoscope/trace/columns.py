"""Packed columns to Polars and codes back to what they stand for."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import polars as pl

from kinetoscope.trace.decoding.decode import LARGEST_US
from kinetoscope.trace.decoding.events import ABSENT, LAYOUTS, RENAMED, canonical
from kinetoscope.trace.decoding.packing import SEPARATOR
from kinetoscope.trace.schema import NAME, DType
from kinetoscope.trace.threads import PIECE, on_threads

_TYPES: dict[str, tuple[DType, int]] = {
    "q": (pl.Int64, 8), "d": (pl.Float64, 8), "I": (pl.UInt32, 4), "B": (pl.UInt8, 1),
}  # fmt: skip
_TEXTS = frozenset(["pid", "tid", "collective", *chain(*(layout.texts for layout in LAYOUTS.values()))])
_DONE = pl.Series()
_JSON = "_json"  # ends the name of a table's column of joined texts


class Alphabet(NamedTuple):
    """A batch's codes among all codes: the batch's position → the code of the whole file."""

    names: pl.Series
    texts: pl.Series
    joined: pl.Series
    lanes: pl.Series


def unpacked(table: str, packed: dict[str, tuple[str, bytes]], alphabet: Alphabet) -> pl.DataFrame:
    """The columns of one packed table of a batch; times become nanoseconds, and absent numbers null. Whole
    numbers are as narrow as they are in this batch: most are small, and batches wait. ``packed``: column →
    (type code, bytes of an array)."""
    frame = pl.DataFrame({name: [data] for name, (_, data) in packed.items()})
    numbers = frame.select(
        array(pl.col(name), typecode, len(data)).alias(name) for name, (typecode, data) in packed.items()
    )
    # Column by column: to plan a query of them all takes longer than small batches do.
    wide = [_whole_file(table, column, alphabet) for column in numbers]
    is_wide = [column.dtype.is_integer() and column.name != "start_ns" for column in wide]
    return pl.DataFrame(
        [one.shrink_dtype() if is_so else one for one, is_so in zip(wide, is_wide, strict=True)]
    )


def array(column: pl.Expr, typecode: str, size: int) -> pl.Expr:
    """The numbers in the one value of a column, which is so many bytes of an array of that type code."""
    dtype, width = _TYPES[typecode]
    return column.bin.reinterpret(dtype=pl.Array(dtype, size // width)).reshape((-1,))


def _whole_file(table: str, column: pl.Series, alphabet: Alphabet) -> pl.Series:
    name, dtype = column.name, column.dtype
    if name == "json":
        return alphabet.joined[column].alias(table + _JSON)
    if name == "lane":
        return alphabet.lanes[column].alias(name)
    if name in ("name", "category"):
        return alphabet.names[column].alias(name)
    if dtype == pl.UInt32:
        return alphabet.texts[column].alias(name)
    if name in ("start", "duration"):
        return _nanoseconds(column).alias(f"{name}_ns")
    if dtype == pl.Int64:
        return column.set(column == ABSENT, None)
    return column.fill_nan(None) if dtype == pl.Float64 else column


def _nanoseconds(column: pl.Series) -> pl.Series:
    """Microseconds as doubles, or nanoseconds with ABSENT, to nanoseconds with nulls, exactly."""
    if column.dtype == pl.Int64:
        return column.set(column == ABSENT, None)
    believable = column.set(~((column < LARGEST_US) & (column > -LARGEST_US)), None)
    whole = believable // 1
    return whole.cast(pl.Int64) * 1000 + ((believable - whole) * 1000).round().cast(pl.Int64)


class CodeTables(NamedTuple):
    """The values that codes stand for."""

    names: pl.Series  # names and categories (Categorical)
    texts: pl.Series  # other texts (Categorical)
    joined: list[pl.Series]  # the texts that were joined, one column a place
    pid: pl.Series  # of lanes, as the file writes it; so is ``tid``
    tid: pl.Series

    def table(self, frame: pl.DataFrame | None) -> pl.DataFrame:
        """The frame with codes replaced by what they stand for, and absent numbers by null."""
        columns = [] if frame is None else frame.get_columns()
        return pl.DataFrame([found for column in columns for found in self._columns(column)])

    def of(self, columns: list[pl.Series], order: pl.Series) -> list[pl.Series]:
        """Columns decoded in the same manner, their rows in that order; each is let go when it is done."""

        def ordered(place: int) -> list[pl.Series]:
            column, columns[place] = columns[place], _DONE
            return self._columns(column[order])

        each = range(len(columns))
        found = on_threads(ordered, each) if len(order) > PIECE else map(ordered, each)
        return list(chain.from_iterable(found))

    def _columns(self, column: pl.Series) -> list[pl.Series]:
        name = column.name
        if name.endswith(_JSON):
            return self._parts(column, LAYOUTS[name.removesuffix(_JSON)].json)
        return [self._column(column)]

    def _parts(self, column: pl.Series, names: tuple[str, ...]) -> list[pl.Series]:
        parts = dict(zip(names, self.joined, strict=False))
        for name, other in RENAMED.items():
            if name in parts:
                renamed = parts.pop(other)
                parts[name] = parts[name].zip_with(parts[name].is_not_null(), renamed)
        return [part[column].alias(name) for name, part in parts.items()]

    def _column(self, column: pl.Series) -> pl.Series:
        name = column.name
        if name == "name":
            return self.names[column].alias(name)
        if name == "category":
            used = column.unique().drop_nulls()
            today = pl.Series([canonical(category) for category in self.names[used]], dtype=pl.String)
            return column.replace_strict(used, today, return_dtype=pl.String).cast(pl.Categorical).alias(name)
        if name in _TEXTS:
            return self.texts[column].alias(name)
        return column


def split(joined: list[str]) -> list[pl.Series]:
    """Joined texts one by one: the first of each, the second of each, …; null where there is none."""
    places = max(len(layout.json) for layout in LAYOUTS.values())
    texts = pl.DataFrame({"joined": pl.Series(joined, dtype=pl.String)}).select(
        pl.col("joined").str.split_exact(SEPARATOR.decode(), places - 1)
    )
    parts = texts.unnest("joined").with_columns(pl.all().replace("", None))
    return [part.cast(NAME) for part in parts]
