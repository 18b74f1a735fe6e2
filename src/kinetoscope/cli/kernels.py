"""``kinetoscope kernels``: device time by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.analysis.profile import Profile

SUMMARY = "the device kernels, by category, op, graph, step or stream"
ROWS, CHAINS = 30, 5
BY = ("kernel", "category", "graph", "step", "stream", "op", "annotation", "module")


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

    profile = load_shown(arguments.inputs)
    return _chains(arguments, profile) if arguments.chain else _sums(arguments, profile)


def _sums(arguments: argparse.Namespace, profile: Profile) -> int:
    from kinetoscope.report.console import standard_output
    from kinetoscope.report.kernel_listing import listing, print_listing, render_json

    shown = listing(profile, arguments.by, arguments.category)
    if arguments.json:
        print(render_json(shown))
    else:
        limit = ROWS if arguments.limit is None else arguments.limit
        print_listing(shown, standard_output(widest=None), limit)
    return 0


def _chains(arguments: argparse.Namespace, profile: Profile) -> int:
    from kinetoscope.analysis.dispatch import dispatches
    from kinetoscope.report.chain_listing import chains_json, print_chains
    from kinetoscope.report.console import standard_output

    found = dispatches(profile, arguments.chain, arguments.category)
    if arguments.json:
        print(chains_json(arguments.chain, found))
    else:
        limit = CHAINS if arguments.limit is None else arguments.limit
        print_chains(arguments.chain, found, standard_output(widest=None), limit)
    return 0
