"""Which rows of a table a pattern fits. Names are few and rows are many: patterns are tried on the names."""

from __future__ import annotations

import weakref

import polars as pl

_DISTINCT: dict[tuple[int, str], pl.Series] = {}  # of tables that live, told apart by identity


def matching(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """Whether each text of a Categorical column contains the regular expression; false of null."""
    distinct = _distinct(table, column)
    wanted = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
    if wanted.is_empty():
        return pl.repeat(False, len(table), dtype=pl.Boolean, eager=True)
    return table[column].is_in(wanted.implode()).fill_null(False)


def _distinct(table: pl.DataFrame, column: str) -> pl.Series:
    """The column's distinct texts, found once a table: dozens of patterns are tried on a trace's names."""
    key = id(table), column
    if key not in _DISTINCT:
        _DISTINCT[key] = table[column].unique()
        weakref.finalize(table, _DISTINCT.pop, key, None)
    return _DISTINCT[key]
