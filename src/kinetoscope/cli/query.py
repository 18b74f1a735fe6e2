"""``kinetoscope query``: SQL over the tables of a trace."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polars import DataFrame

from kinetoscope.cli import _options

EPILOG = """\
examples:
  kinetoscope query trace.json.gz --tables
  kinetoscope query trace.json.gz "SELECT op_name, SUM(duration_ns) / 1e6 AS ms FROM device_events
                                   GROUP BY op_name ORDER BY ms DESC LIMIT 10"
"""
ROWS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", nargs="?", help="a recording, a trace, or a folder of them")
    parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT (Polars' SQL)")
    _options.flag(parser, "--tables", "list the tables, their columns and meanings")
    _options.flag(parser, "--allow-files", "let the query read files and addresses (read_csv, …)")
    _options.as_json(parser, ": the rows as a list of objects")
    _options.limit(parser, ROWS)


def main(arguments: argparse.Namespace) -> int:
    if arguments.tables:
        return _list_tables(arguments)
    from kinetoscope.errors import UsageError

    if arguments.input is None or arguments.sql is None:
        raise UsageError(
            "a query needs an input and a SELECT",
            hint='kinetoscope query trace.json.gz "SELECT name, duration_ns FROM device_events"',
        )
    import msgspec

    from kinetoscope.analysis.query import query
    from kinetoscope.progress import load_shown

    rows = _shown(query(load_shown([arguments.input]), arguments.sql, allow_files=arguments.allow_files))
    if arguments.json:
        print(msgspec.json.encode(rows.to_dicts()).decode())
        return 0
    from kinetoscope.render.terminal import show
    from kinetoscope.views.query import listing

    shown = rows if arguments.limit == 0 else rows.head(arguments.limit)
    show([listing(shown.columns, [dtype.is_numeric() for dtype in shown.dtypes], shown.rows())])
    if len(rows) > len(shown):
        print(f"{len(shown):,} of {len(rows):,} rows; --limit 0 or --json prints all", file=sys.stderr)
    return 0


def _shown(rows: DataFrame) -> DataFrame:
    """Times that no calendar has are shown as numbers."""
    import polars.selectors as cs

    try:
        rows.select(cs.temporal()).rows()
    except (ValueError, OverflowError):
        return rows.with_columns(cs.temporal().to_physical())
    return rows


def _list_tables(arguments: argparse.Namespace) -> int:
    from kinetoscope.analysis.query import TABLES
    from kinetoscope.views.query import columns

    rows = [
        {"table": table, "column": name, "type": str(column.dtype), "meaning": column.meaning}
        for table, known in TABLES.items()
        for name, column in known.items()
    ]
    _options.answer(arguments, rows, lambda: columns(rows))
    return 0
