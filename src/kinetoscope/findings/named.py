"""Events by their name. Names are few and events many: patterns are tried on the names."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace


@remembered
def _host_index(trace: Trace) -> pl.DataFrame:
    return index(trace.host_events, "id")


def index(events: pl.DataFrame, row: str) -> pl.DataFrame:
    """For each distinct name its ``text`` and the list of its rows."""
    return events.group_by("name").agg(pl.col(row)).with_columns(pl.col("name").cast(pl.String).alias("text"))


def rows(names: pl.DataFrame, pattern: str, row: str) -> pl.Series:
    """Rows, in order, of the events whose name contains the regular expression."""
    return names.filter(pl.col("text").str.contains(pattern))[row].explode().drop_nulls().sort()


def host_rows(trace: Trace, pattern: str) -> pl.Series:
    """Rows of ``host_events`` whose name contains the regular expression, in order."""
    return rows(_host_index(trace), pattern, "id")
