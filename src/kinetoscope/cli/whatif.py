"""``kinetoscope whatif``: the recorded steps replayed, as they were and with something changed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.document import WhatIfRow

EPILOG = """\
examples:
  kinetoscope whatif REC                                    what the step consists of: the critical path
  kinetoscope whatif REC --kernel '*flash*=0.5'             that kernel in half its time
  kinetoscope whatif REC --category communication=0 --host 0.7
"""
ROWS = 15
SCALED = {
    "kernel": "kernels of that name",
    "op": "ops of that name, with all device work in them,",
    "category": "kernels of that category",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser)
    for of, what in SCALED.items():
        what = f"{what} take F (0 to 1) of their time"
        parser.add_argument(f"--{of}", action="append", default=[], metavar="GLOB=F", help=what)
    parser.add_argument("--host", type=float, metavar="F", help="host time is F (0 to 1) of what it was")
    _options.flag(parser, "--no-sync", "no call waits for the device")
    _options.flag(parser, "--fuse", "chains of eager elementwise kernels are one kernel each")
    _options.as_json(parser, ", with the whole path")
    _options.limit(parser, ROWS, "parts of the path")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import Reader, answered

    named = {of: dict(_factor(f"--{of}", text) for text in getattr(arguments, of)) for of in SCALED}
    factor = None if arguments.host is None else _factor("--host", f"*={arguments.host}")[1]
    no_sync, fuse = arguments.no_sync, arguments.fuse

    def find(read: Reader) -> WhatIfRow | None:
        from kinetoscope.analysis.replay import what_if
        from kinetoscope.document.collect.replay import what_if_listing

        changes = what_if.asked(**named, host_factor=factor, no_sync=no_sync, fuse=fuse)
        return what_if_listing(read(arguments.inputs), changes)

    options = {**named, "host": factor, "no_sync": no_sync, "fuse": fuse}
    listing = answered(arguments.inputs, "kinetoscope.document:WhatIfRow", find, **options)
    from kinetoscope.views import whatif as view

    _options.answer(arguments, listing, lambda: view.listing(listing, arguments.limit))
    return 0


def _factor(option: str, text: str) -> tuple[str, float]:
    """``GLOB=F`` taken apart. Raises UsageError where it is not so, or F is not from 0 to 1."""
    from kinetoscope.errors import UsageError

    glob, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = -1.0
    if not glob or not 0 <= factor <= 1:
        what, example = ("FRACTION", "0.5") if option == "--host" else ("NAME=FRACTION", "'*mm*=0.5'")
        raise UsageError(
            f"expected {what} (0 to 1), got {text.removeprefix('*=')!r}",
            where=option,
            hint=f"{option} {example}",
        )
    return glob, factor
