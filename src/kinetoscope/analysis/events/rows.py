"""Rows of a table by a text of theirs. Names are few and rows are many: patterns are tried on the names."""

from __future__ import annotations

import weakref

import polars as pl

# When an event has ended, exclusive: the column that events do not have.
END = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")

# The distinct values of a column and their texts, found once a table: dozens of patterns are tried on a
# trace's names. Tables are distinguished by identity, and forgotten when they go.
_DISTINCT: dict[tuple[int, str], tuple[pl.Series, pl.Series]] = {}


def matching(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """Whether each text of a Categorical column contains the regular expression; false of null."""
    values, texts = _distinct(table, column)
    wanted = values.filter(texts.str.contains(pattern))
    if wanted.is_empty():
        return pl.repeat(False, len(table), dtype=pl.Boolean, eager=True)
    return table[column].is_in(wanted.implode()).fill_null(False)


def rows(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """The numbers (UInt32) of the rows that are ``matching``, in order."""
    return matching(table, column, pattern).arg_true()


def _distinct(table: pl.DataFrame, column: str) -> tuple[pl.Series, pl.Series]:
    key = id(table), column
    if key not in _DISTINCT:
        values = table[column].unique()
        _DISTINCT[key] = values, values.cast(pl.String)
        weakref.finalize(table, _DISTINCT.pop, key, None)
    return _DISTINCT[key]
