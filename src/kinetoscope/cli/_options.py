"""Options that several verbs take: one word means one thing in all of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kinetoscope.render.blocks import Block

T = TypeVar("T")


def flag(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    parser.add_argument(name, action="store_true", help=what)


def inputs(parser: argparse.ArgumentParser, what: str = "a recording, a trace, or a folder of them") -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=what)


def as_json(parser: argparse.ArgumentParser, note: str = " and nothing else") -> None:
    flag(parser, "--json", f"print one JSON document{note}")


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """The ``type`` of an option that is a number, and no smaller one."""

    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:  # nor NaN
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return number


def limit(parser: argparse.ArgumentParser, rows: int, what: str = "rows") -> None:
    printed = f"{what} to print (default {rows}; 0: all)" if rows else f"{what} to print (default all)"
    parser.add_argument("--limit", type=at_least(0), default=rows, metavar="N", help=printed)


def fail_on(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--fail-on", action="append", default=[], metavar="EXPR", help=what)


def output(parser: argparse.ArgumentParser, what: str, metavar: str = "FILE", **settings: Any) -> None:
    """Where a result is written: one file or folder."""
    names = ("-o", "--output", "--out")
    parser.add_argument(*names, dest="output", type=Path, metavar=metavar, help=what, **settings)


def parts(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """Where parts of traces are kept: a folder or a bucket."""
    what = "keep there what a comparison of ranks needs of each trace (some 10 KB), instead of the traces"
    parser.add_argument("--parts", metavar="DIR|URL", help=what, **settings)


def engine(parser: argparse.ArgumentParser, known: Sequence[str], note: str = "") -> None:
    """The option that says what reads many traces."""
    what = f"what reads the traces, each on its own: this machine's cores, or a cluster's through Ray{note}"
    parser.add_argument("--engine", choices=known, default=known[0], help=what)


def write(file: Path, content: bytes) -> None:
    """Write a result, and say so on stderr. Raises UsageError where the system does not let us."""
    from kinetoscope.render import destination

    destination.write(file, content)
    print(f"wrote {file} ({len(content):,} bytes)", file=sys.stderr)


def program(parser: argparse.ArgumentParser) -> None:
    """The program to run: a script, or with ``-m`` a module, and its arguments."""
    add, words = parser.add_argument, "script.py [arguments]"
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("program", nargs=argparse.REMAINDER, metavar=words, help="what to run")


def first(rows: list[T], limit: int) -> list[T]:
    """The rows that ``--limit`` leaves; stderr says how many there are."""
    if limit and len(rows) > limit:
        print(f"{limit:,} of {len(rows):,} rows; --limit 0 or --json prints all", file=sys.stderr)
        return rows[:limit]
    return rows


def answer(
    arguments: argparse.Namespace,
    document: object,
    blocks: Callable[[], Iterable[Block]],
    *,
    # as text that is read, of limited width, and not as rows, which use the whole terminal
    as_page: bool = False,
) -> None:
    """Print the result of a verb: with ``--json`` the document, otherwise its blocks."""
    if arguments.json:
        from kinetoscope.render.json import indented

        print(indented(document))
    else:
        from kinetoscope.render.terminal import show, standard_output

        show(blocks(), standard_output() if as_page else None)


def progress(text: str) -> None:
    """Say on stderr what is being done."""
    print(f"kinetoscope: {text}", file=sys.stderr, flush=True)
