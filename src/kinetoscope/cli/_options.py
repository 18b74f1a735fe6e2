"""Options that several verbs take: one word means one thing in all of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def inputs(parser: argparse.ArgumentParser, what: str = "a recording, a trace, or a folder of them") -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=what)


def as_json(parser: argparse.ArgumentParser, note: str = " and nothing else") -> None:
    parser.add_argument("--json", action="store_true", help=f"print one JSON document{note}")


def limit(parser: argparse.ArgumentParser, rows: int, what: str = "rows") -> None:
    parser.add_argument(
        "--limit",
        type=int,
        default=rows,
        metavar="N",
        help=f"{what} to print (default {rows or 'all'}; 0: all)",
    )


def fail_on(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--fail-on", action="append", default=[], metavar="EXPR", help=what)


def output(
    parser: argparse.ArgumentParser, what: str, *, metavar: str = "FILE", required: bool = False
) -> None:
    """Where a result is written: one file or folder."""
    parser.add_argument(
        "-o", "--output", "--out", dest="output", type=Path, metavar=metavar, required=required, help=what
    )


def program(parser: argparse.ArgumentParser) -> None:
    """The program to run: a script, or with ``-m`` a module, and its arguments."""
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="script.py [arguments]", help="what to run"
    )


def measured_runs(parser: argparse.ArgumentParser, seconds: float) -> None:
    """How long each run of a program is timed."""
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps of each run (default 40)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        metavar="S",
        help=f"of each run after its first step (default {seconds:g})",
    )


def first(rows: list[T], limit: int) -> list[T]:
    """The rows that ``--limit`` leaves; stderr says how many there are."""
    if limit and len(rows) > limit:
        print(f"{limit:,} of {len(rows):,} rows; --limit 0 or --json prints all", file=sys.stderr)
        return rows[:limit]
    return rows


def progress(text: str) -> None:
    """Say on stderr what is being done."""
    print(f"kinetoscope: {text}", file=sys.stderr, flush=True)
