"""``kinetoscope query``: SQL over the tables of a trace."""

from __future__ import annotations

import argparse
import sys

SUMMARY = "SQL over the tables of a trace"
EPILOG = """\
examples:
  kinetoscope query trace.json.gz --tables
  kinetoscope query trace.json.gz "SELECT op_name, SUM(duration_ns) / 1e6 AS ms FROM device_events
                                   GROUP BY op_name ORDER BY ms DESC LIMIT 10"
"""
ROWS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("input", metavar="INPUT", nargs="?", help="a recording, a trace, or a folder of them")
    parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT (Polars' SQL)")
    parser.add_argument("--tables", action="store_true", help="list the tables, their columns and meanings")
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON list of objects")
    parser.add_argument(
        "--limit", type=int, default=ROWS, help=f"rows to print as a table (default {ROWS}; 0: all)"
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.tables:
        return _list_tables(as_json=arguments.json)
    from kinetoscope.errors import UsageError

    if arguments.input is None or arguments.sql is None:
        raise UsageError(
            "a query needs an input and a SELECT",
            mend='kinetoscope query trace.json.gz "SELECT name, duration_ns FROM device_events"',
        )
    from kinetoscope.report.collect.tables import answer
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.progress import load_shown
    from kinetoscope.report.verbs.query import print_answer, render_json

    found = answer(load_shown([arguments.input]), arguments.sql, 0 if arguments.json else arguments.limit)
    if arguments.json:
        print(render_json(found))
        return 0
    print_answer(found, standard_output(widest=None))
    if found.left_out:
        shown = len(found.rows)
        whole = f"{shown:,} of {shown + found.left_out:,} rows"
        print(f"{whole}; --limit 0 or --json prints all", file=sys.stderr)
    return 0


def _list_tables(*, as_json: bool) -> int:
    from itertools import groupby

    import msgspec

    from kinetoscope.report.collect.tables import columns

    if as_json:
        print(msgspec.json.encode(columns()).decode())
        return 0
    for table, described in groupby(columns(), lambda column: column.table):
        print(table)
        for column in described:
            print(f"  {column.column:<20} {column.type:<8} {column.meaning}".rstrip())
    return 0
