"""``kinetoscope kernels``: device time by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.analysis.run import Run

ROWS, CHAINS = 30, 5
BY = ("kernel", "category", "graph", "step", "phase", "stream", "op", "annotation", "module")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, or a folder of them"
    )
    parser.add_argument("--category", metavar="C", help="only this category: pointwise, matmul, …")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--by", choices=BY, default="kernel", help="what to sum device time by (default kernel)"
    )
    shown.add_argument(
        "--chain",
        metavar="NAME",
        help="how the kernels with NAME in their name (or that fit a pattern with * or ?) came about: step, "
        "annotation, ops, launch, kernel",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, with every row")
    parser.add_argument(
        "--limit", type=int, help=f"rows or chains to print (default {ROWS} rows, {CHAINS} chains; 0: all)"
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.report.progress import load_shown

    run = load_shown(arguments.inputs)
    return _chains(arguments, run) if arguments.chain else _sums(arguments, run)


def _sums(arguments: argparse.Namespace, run: Run) -> int:
    from kinetoscope.report.collect.kernels import listing
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.verbs.kernels import print_listing, render_json

    shown = listing(run, arguments.by, arguments.category)
    if arguments.json:
        print(render_json(shown))
    else:
        limit = ROWS if arguments.limit is None else arguments.limit
        print_listing(shown, standard_output(widest=None), limit)
    return 0


def _chains(arguments: argparse.Namespace, run: Run) -> int:
    from kinetoscope.report.collect.chains import chains
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.verbs.chains import print_chains, render_json

    found = chains(run, arguments.chain, arguments.category)
    if arguments.json:
        print(render_json(found))
    else:
        limit = CHAINS if arguments.limit is None else arguments.limit
        print_chains(found, standard_output(widest=None), limit)
    return 0
