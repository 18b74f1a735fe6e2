"""Tables of a trace, and what SQL selects from them."""

from __future__ import annotations

from kinetoscope.analysis.query import TABLES, query
from kinetoscope.analysis.run import Run
from kinetoscope.report.document import Answer, ColumnRow


def columns() -> list[ColumnRow]:
    """Every column of every table."""
    return [
        ColumnRow(table=table, column=name, type=str(column.dtype), meaning=column.meaning)
        for table, described in TABLES.items()
        for name, column in described.items()
    ]


def answer(run: Run, sql: str, limit: int) -> Answer:
    """At most ``limit`` of the rows that one SELECT finds (0: all).

    Raises:
        UsageError: the statement cannot be run.
    """
    found = query(run, sql)
    shown = found.head(limit) if limit else found
    return Answer(
        columns=shown.columns,
        numeric=[dtype.is_numeric() for dtype in shown.dtypes],
        rows=shown.rows(),
        left_out=len(found) - len(shown),
    )
