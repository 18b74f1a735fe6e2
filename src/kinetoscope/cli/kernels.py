"""``kinetoscope kernels``: device time by kernel, and by everything a kernel belongs to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.document import ChainListing, KernelListing
    from kinetoscope.sources.run import LoadedRun

ROWS, CHAINS = 30, 5
# The keys of ``analysis.origins.sums.BY``: that loads Polars, which is for later, while a trace is decoded.
BY = (
    "kernel", "category", "graph", "step", "phase", "stream", "op", "annotation", "module", "line", "grid",
)  # fmt: skip

EPILOG = """\
examples:
  kinetoscope kernels REC --by line                     the lines of your program that the time belongs to
  kinetoscope kernels REC --chain gemm                  what launched the kernels of that name

then:
  kinetoscope explain KERNEL                            what the parts of a kernel's name mean
"""


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
        "--limit",
        type=_options.at_least(0),
        help=f"rows or chains to print (default {ROWS} rows, {CHAINS} chains; 0: all)",
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import Reader, answered

    inputs, by, chain, category = arguments.inputs, arguments.by, arguments.chain, arguments.category

    def chains(read: Reader) -> ChainListing:
        from kinetoscope.analysis.origins.dispatch import chains

        return chains(_with_device_work(read(inputs), inputs), chain, category)

    def listing(read: Reader) -> KernelListing:
        from kinetoscope.document.collect.kernels import listing

        return listing(_with_device_work(read(inputs), inputs), by, category)

    if chain:
        found = answered(inputs, "kinetoscope.document:ChainListing", chains, name=chain, category=category)
        from kinetoscope.views import kernels as view

        most = CHAINS if arguments.limit is None else arguments.limit
        _options.answer(arguments, view.chains_document(found), lambda: view.chains(found, most))
        return 0
    shown = answered(inputs, "kinetoscope.document:KernelListing", listing, by=by, category=category)
    from kinetoscope.views import kernels as view

    rows = ROWS if arguments.limit is None else arguments.limit
    _options.answer(arguments, view.document(shown), lambda: view.listing(shown, rows))
    return 0


def _with_device_work(run: LoadedRun, inputs: list[str]) -> LoadedRun:
    """The run, if there is anything of a device in it. Raises InputError where there is not."""
    from kinetoscope.errors import InputError

    if not any(len(trace.device_events) for trace in run.traces):
        raise InputError(
            "no device work was recorded in it",
            where=" ".join(inputs),
            hint="`kinetoscope graphs` shows a compile log, `kinetoscope report` what ran on the host",
        )
    return run
