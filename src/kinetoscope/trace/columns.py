"""Packed columns to Polars and codes back to what they stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from kinetoscope.trace.decode import LARGEST_US
from kinetoscope.trace.events import ABSENT, canonical

_TYPES: dict[str, tuple[Any, int]] = {
    "q": (pl.Int64, 8), "d": (pl.Float64, 8), "I": (pl.UInt32, 4), "B": (pl.UInt8, 1),
}  # fmt: skip
_PLAIN = frozenset(["id", "event", "lane", "start_ns", "duration_ns"])
_NEEDED = _PLAIN | {"name", "category", "device", "stream", "flow"}


class Alphabet(NamedTuple):
    """What a batch's codes are among all codes: the batch's position → the code of the whole file."""

    names: pl.Series
    texts: pl.Series
    lanes: pl.Series


def unpacked(packed: dict[str, tuple[str, bytes]], alphabet: Alphabet, events_before: int) -> pl.DataFrame:
    """The columns of one room of a batch, all in one query: from the bytes of arrays of those type codes, with codes
    and positions of the whole file, and times in nanoseconds."""
    frame = pl.DataFrame({name: [data] for name, (_, data) in packed.items()})
    return frame.select(
        _whole_file(name, typecode, len(data), alphabet, events_before)
        for name, (typecode, data) in packed.items()
    )


def _whole_file(name: str, typecode: str, size: int, alphabet: Alphabet, events_before: int) -> pl.Expr:
    dtype, width = _TYPES[typecode]
    column = pl.col(name).bin.reinterpret(dtype=pl.Array(dtype, size // width)).reshape((-1,))
    if name == "event":
        return column + events_before
    if name == "lane":
        return pl.lit(alphabet.lanes).gather(column).alias(name)
    if name in ("name", "category"):
        return pl.lit(alphabet.names).gather(column).alias(name)
    if typecode == "I":
        return pl.lit(alphabet.texts).gather(column).alias(name)
    if name in ("start", "duration"):
        return nanoseconds(column, dtype).alias(f"{name}_ns")
    return column


def nanoseconds(column: pl.Expr, dtype: Any) -> pl.Expr:
    """Microseconds as doubles, or nanoseconds with ABSENT, to nanoseconds with nulls, exactly."""
    if dtype == pl.Int64:
        return pl.when(column != ABSENT).then(column)
    believable = pl.when(column.is_finite() & (column.abs() < LARGEST_US)).then(column)
    whole = believable.floor()
    return whole.cast(pl.Int64) * 1000 + ((believable - whole) * 1000).round().cast(pl.Int64)


class Meaning(NamedTuple):
    """What codes stand for: names and categories, other texts (both Categorical), and the pid and tid of lanes."""

    names: pl.Series
    texts: pl.Series
    pid: pl.Series
    tid: pl.Series

    def table(self, frame: pl.DataFrame | None) -> pl.DataFrame:
        """The frame with codes replaced by what they stand for, and absent numbers by null."""
        return pl.DataFrame(
            [] if frame is None else [self._column(column) for column in frame.iter_columns()]
        )

    def of(self, columns: list[pl.Series], order: pl.Series) -> list[pl.Series]:
        """Columns likewise, their rows in that order; empty ones are left out, each is let go when it is done."""
        columns.reverse()
        found: list[pl.Series] = []
        while columns:
            column = columns.pop()
            if not is_empty(column):
                found.append(self._column(column.gather(order)))
        return found

    def _column(self, column: pl.Series) -> pl.Series:
        name = column.name
        if name == "name":
            return self.names.gather(column).alias(name)
        if name == "category":
            used = column.unique().drop_nulls()
            today = pl.Series([canonical(category) for category in self.names.gather(used)], dtype=pl.String)
            return column.replace_strict(used, today, return_dtype=pl.String).cast(pl.Categorical).alias(name)
        if name in _PLAIN:
            return column
        if column.dtype == pl.UInt32:
            return self.texts.gather(column).alias(name)
        if column.dtype == pl.Int64 and column.min() == ABSENT:
            return column.set(column == ABSENT, None)
        return column.fill_nan(None) if column.dtype == pl.Float64 else column


def is_empty(column: pl.Series) -> bool:
    """Whether a packed column holds nothing, and may be left out."""
    if column.name in _NEEDED:
        return False
    if column.dtype == pl.UInt32:
        return column.max() in (0, None)
    return column.dtype == pl.Int64 and column.max() in (ABSENT, None)
