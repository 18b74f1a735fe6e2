"""Rows of a table by a text of theirs. Names are few and rows are many: patterns are tried on the names."""

from __future__ import annotations

import re
import weakref
from functools import lru_cache, reduce
from operator import or_

import polars as pl

# When an event has ended, exclusive: the column that events do not have.
END = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")

# The distinct texts of a column, and which of them fit a pattern, found once a table: dozens of patterns are
# tried on a trace's names, some of them a dozen times. Tables are distinguished by identity, and forgotten
# when they go.
_KNOWN: dict[tuple[int, str], tuple[pl.Series, dict[str, list[str]]]] = {}
FEW = 4  # values: each is compared with all rows, which takes less than looking all rows up


def matching(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """Whether each text of a Categorical column contains the regular expression; false of null."""
    texts, found = _known(table, column)
    if pattern not in found:
        found[pattern] = texts.filter(texts.str.contains(of_ascii(pattern))).to_list()
    wanted, values = found[pattern], table[column]
    if not wanted:
        return constant(False, len(values), pl.Boolean)
    few = len(wanted) <= FEW
    fits = reduce(or_, (values == text for text in wanted)) if few else values.is_in(wanted)
    return fits.fill_null(False) if values.null_count() else fits


def of_ascii(pattern: str) -> str:
    """The pattern with words and digits of ASCII: to compile all letters that there are takes long."""
    return re.sub(r"\\[wWdb]", lambda escape: _OF_ASCII[escape[0]], pattern)


_OF_ASCII = {r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}


def rows(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """The numbers (UInt32) of the rows that are ``matching``, in order."""
    return pl.int_range(len(table), dtype=pl.UInt32, eager=True).filter(matching(table, column, pattern))


def constant(value: float | bool | None, count: int, dtype: type[pl.DataType]) -> pl.Series:
    """One value so many times: thirty times as fast as ``pl.repeat`` makes a short one."""
    return pl.Series([value], dtype=dtype).new_from_index(0, count)


def _known(table: pl.DataFrame, column: str) -> tuple[pl.Series, dict[str, list[str]]]:
    key = id(table), column
    if key not in _KNOWN:
        texts = table[column].unique().cast(pl.String).to_list()
        _KNOWN[key] = _fitting(tuple(sorted(text for text in texts if text is not None)))
        weakref.finalize(table, _KNOWN.pop, key, None)
    return _KNOWN[key]


@lru_cache(maxsize=16)
def _fitting(texts: tuple[str, ...]) -> tuple[pl.Series, dict[str, list[str]]]:
    """Which of these texts fit each pattern tried so far: one program's ranks have the same names."""
    return pl.Series(texts, dtype=pl.String), {}
