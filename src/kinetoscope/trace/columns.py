"""Packed columns to Polars and codes back to what they stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from kinetoscope.trace.decode import LARGEST_US
from kinetoscope.trace.events import ABSENT, canonical

_TYPES: dict[str, Any] = {"q": pl.Int64, "d": pl.Float64, "I": pl.UInt32, "B": pl.UInt8}
_PLAIN = frozenset(["id", "event", "lane", "start_ns", "duration_ns"])
_NEEDED = _PLAIN | {"name", "category", "device", "stream", "flow"}


def unpacked(name: str, typecode: str, data: bytes) -> pl.Series:
    """A column from the bytes of an array of that type code."""
    dtype = _TYPES[typecode]
    width = {"q": 8, "d": 8, "I": 4, "B": 1}[typecode]
    packed = pl.Series(name, [data]).bin.reinterpret(dtype=pl.Array(dtype, len(data) // width))
    return packed.reshape((-1,))


def nanoseconds(column: pl.Series) -> pl.Series:
    """Microseconds as doubles, or nanoseconds with ABSENT, to nanoseconds with nulls, exactly."""
    if column.dtype == pl.Int64:
        return column.set(column == ABSENT, None)
    frame = column.to_frame("us").with_columns(
        pl.when(pl.col("us").is_finite() & (pl.col("us").abs() < LARGEST_US)).then("us").alias("us")
    )
    whole = pl.col("us").floor()
    return frame.select(
        whole.cast(pl.Int64) * 1000 + ((pl.col("us") - whole) * 1000).round().cast(pl.Int64)
    ).to_series()


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
