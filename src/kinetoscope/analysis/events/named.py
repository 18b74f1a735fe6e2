"""Events by their name. Names are few and events many: patterns are tried on the names."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace


class Index:
    """Rows by name: all of them in order of their names, and where each name's begin."""

    def __init__(self, names: pl.Series) -> None:
        codes = names.to_physical()
        self._rows = codes.arg_sort()
        runs = codes.gather(self._rows).rle().struct.unnest()
        self._names = runs.select(
            text=names.gather(self._rows.gather(runs["len"].cum_sum() - 1)).cast(pl.String),
            start=pl.col("len").cum_sum() - pl.col("len"),
            length="len",
        )

    def rows(self, pattern: str) -> pl.Series:
        """Rows, in order, of the names that contain the regular expression."""
        fits = self._names.filter(pl.col("text").str.contains(pattern))
        parts = [self._rows.slice(start, length) for _, start, length in fits.iter_rows()]
        return pl.concat([self._rows.clear(), *parts]).sort()


@remembered
def host_index(trace: Trace) -> Index:
    return Index(trace.host_events["name"])


def host_rows(trace: Trace, pattern: str) -> pl.Series:
    """Rows of ``host_events`` whose name contains the regular expression, in order."""
    return host_index(trace).rows(pattern)
