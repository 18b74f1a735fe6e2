"""``kinetoscope kernels``: device time by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import argparse

SUMMARY = "the device kernels, by category, op, graph, step or stream"
ROWS = 30
BY = ("kernel", "category", "graph", "step", "stream", "op", "annotation", "module")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, or a folder of them"
    )
    parser.add_argument("--category", metavar="C", help="only this category: pointwise, matmul, …")
    parser.add_argument(
        "--by", choices=BY, default="kernel", help="what to sum device time by (default kernel)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, with every row")
    parser.add_argument("--limit", type=int, default=ROWS, help=f"rows to print (default {ROWS}; 0: all)")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.report.kernel_listing import listing, print_listing, render_json
    from kinetoscope.report.progress import load_shown

    shown = listing(load_shown(arguments.inputs), arguments.by, arguments.category)
    if arguments.json:
        print(render_json(shown))
        return 0
    from kinetoscope.report.console import standard_output

    print_listing(shown, standard_output(widest=None), arguments.limit)
    return 0
