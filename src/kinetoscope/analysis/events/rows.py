"""Rows of a table by a text of theirs. Names are few and rows are many: patterns are tried on the names."""

from __future__ import annotations

import re
import weakref
from functools import lru_cache
from typing import NamedTuple

import polars as pl

from kinetoscope.trace.schema import whole

# When an event has ended, exclusive: the column that events do not have.
END = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")

# The codes of a column, its distinct texts, and which of those fit a pattern, found once a table: dozens of
# patterns are tried on a trace's names, some of them a dozen times. Tables are distinguished by identity, and
# forgotten when they go.
_KNOWN: dict[tuple[int, str], tuple[pl.Series, _Texts]] = {}


class _Texts(NamedTuple):
    """Distinct texts with their codes, and for each pattern tried so far whether a code's text fits; None:
    none does."""

    texts: pl.Series
    codes: pl.Series
    fits: dict[str, pl.Series | None]


def matching(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """Whether each text of a column contains the regular expression; false of null."""
    codes, (texts, of_texts, tried) = _known(table, column)
    if pattern not in tried:
        wanted = of_texts.filter(texts.str.contains(of_ascii(pattern)))
        size = 0 if wanted.is_empty() else whole(of_texts.max()) + 1
        tried[pattern] = constant(False, size, pl.Boolean).scatter(wanted, True) if size else None
    fits = tried[pattern]
    if fits is None:
        return constant(False, len(codes), pl.Boolean)
    found = fits[codes].alias(column)
    return found.fill_null(False) if codes.null_count() else found


def of_ascii(pattern: str) -> str:
    """The pattern with words and digits of ASCII: to compile all letters that there are takes long."""
    return re.sub(r"\\[wWdb]", lambda escape: _OF_ASCII[escape[0]], pattern)


_OF_ASCII = {r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}


def rows(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """The numbers (UInt32) of the rows that are ``matching``, in order."""
    return pl.int_range(len(table), dtype=pl.UInt32, eager=True).filter(matching(table, column, pattern))


def constant(value: float | bool | None, count: int, dtype: type[pl.DataType]) -> pl.Series:
    """One value so many times: a hundred times as fast as ``pl.repeat`` makes a short one."""
    return _one(value, dtype).new_from_index(0, count)


@lru_cache(maxsize=64)
def _one(value: float | bool | None, dtype: type[pl.DataType]) -> pl.Series:
    return pl.Series([value], dtype=dtype)


def _known(table: pl.DataFrame, column: str) -> tuple[pl.Series, _Texts]:
    key = id(table), column
    if key not in _KNOWN:
        values = table[column].cast(pl.Categorical)
        codes = values.to_physical()
        each = codes.arg_unique()
        texts = zip(values[each].cast(pl.String).to_list(), codes[each].to_list(), strict=True)
        known = sorted(pair for pair in texts if pair[0] is not None)
        _KNOWN[key] = codes, _fitting(tuple(known))
        weakref.finalize(table, _KNOWN.pop, key, None)
    return _KNOWN[key]


@lru_cache(maxsize=16)
def _fitting(texts: tuple[tuple[str, int], ...]) -> _Texts:
    """Which of these texts fit each pattern tried so far: one program's ranks have the same names."""
    return _Texts(
        pl.Series([text for text, _ in texts], dtype=pl.String),
        pl.Series([code for _, code in texts], dtype=pl.UInt32),
        {},
    )
