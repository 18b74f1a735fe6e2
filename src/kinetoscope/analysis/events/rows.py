"""Rows of a table by a text of theirs. Names are few and rows are many: patterns are tried on the names."""

from __future__ import annotations

import re
import weakref
from functools import lru_cache, reduce
from itertools import compress
from operator import or_

import polars as pl

# When an event has ended, exclusive: the column that events do not have.
END = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")

# The codes of a column, the code of each distinct text, and which texts fit a pattern, found once a table:
# dozens of patterns are tried on a trace's names, some of them a dozen times. Tables are distinguished by
# identity, and forgotten when they go.
_KNOWN: dict[tuple[int, str], tuple[pl.Series, dict[str, int], dict[str, list[str]]]] = {}
FEW = 4  # values: each is compared with all rows, which takes less than looking all rows up


def matching(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """Whether each text of a Categorical column contains the regular expression; false of null."""
    codes, texts, found = _known(table, column)
    if texts and pattern not in found:
        fits = pl.Series([*texts], dtype=pl.String).str.contains(of_ascii(pattern))
        found[pattern] = [*compress(texts, fits.to_list())]
    wanted = [texts[text] for text in found.get(pattern, ())]
    if not wanted:
        return constant(False, len(codes), pl.Boolean)
    fits = (
        codes.is_in(pl.Series(wanted, dtype=codes.dtype).implode())
        if len(wanted) > FEW
        else reduce(or_, (codes == code for code in wanted))
    )
    return fits.fill_null(False) if codes.null_count() else fits


def of_ascii(pattern: str) -> str:
    """The pattern with words and digits of ASCII: to compile all letters that there are takes long."""
    return re.sub(r"\\[wWdb]", lambda escape: _OF_ASCII[escape[0]], pattern)


_OF_ASCII = {r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}


def rows(table: pl.DataFrame, column: str, pattern: str) -> pl.Series:
    """The numbers (UInt32) of the rows that are ``matching``, in order."""
    return matching(table, column, pattern).arg_true()


def constant(value: float | bool | None, count: int, dtype: type[pl.DataType]) -> pl.Series:
    """One value so many times: thirty times as fast as ``pl.repeat`` makes a short one."""
    return pl.Series([value], dtype=dtype).new_from_index(0, count)


def _known(table: pl.DataFrame, column: str) -> tuple[pl.Series, dict[str, int], dict[str, list[str]]]:
    key = id(table), column
    if key not in _KNOWN:
        values = table[column].unique()
        coded = zip(values.cast(pl.String).to_list(), values.to_physical().to_list(), strict=True)
        texts = dict(sorted((text, code) for text, code in coded if text is not None))
        _KNOWN[key] = table[column].to_physical(), texts, _fitting(tuple(texts))
        weakref.finalize(table, _KNOWN.pop, key, None)
    return _KNOWN[key]


@lru_cache(maxsize=16)
def _fitting(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Which of these texts fit each pattern tried so far: one program's ranks have the same names."""
    return {}
