"""``kinetoscope kernels``: device time by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

ROWS, CHAINS = 30, 5
# The keys of ``analysis.origins.sums.BY``: that loads Polars, which is for later, while a trace is decoded.
BY = (
    "kernel", "category", "graph", "step", "phase", "stream", "op", "annotation", "module", "line", "grid",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser)
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
    _options.as_json(parser, ", with every row")
    parser.add_argument(
        "--limit", type=int, help=f"rows or chains to print (default {ROWS} rows, {CHAINS} chains; 0: all)"
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.analysis.origins.dispatch import chains
    from kinetoscope.document.collect.kernels import listing
    from kinetoscope.errors import InputError
    from kinetoscope.progress import load_shown
    from kinetoscope.views import kernels as view

    run, limit = load_shown(arguments.inputs), arguments.limit
    if not any(len(trace.device_events) for trace in run.traces):
        raise InputError(
            "no device work was recorded in it",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope graphs` shows a compile log, `kinetoscope report` what ran on the host",
        )
    if arguments.chain:
        found = chains(run, arguments.chain, arguments.category)
        most = CHAINS if limit is None else limit
        _options.answer(arguments, view.chains_document(found), lambda: view.chains(found, most))
        return 0
    shown, rows = listing(run, arguments.by, arguments.category), ROWS if limit is None else limit
    _options.answer(arguments, view.document(shown), lambda: view.listing(shown, rows))
    return 0
