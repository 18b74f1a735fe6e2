"""``kinetoscope whatif``: the recorded steps replayed, as they were and with something changed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.document.collect.replay import Asked

EPILOG = """\
examples:
  kinetoscope whatif REC                                    what the step consists of: the critical path
  kinetoscope whatif REC --kernel '*flash*=0.5'             that kernel in half its time
  kinetoscope whatif REC --category communication=0 --host 0.7
"""
ROWS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, or a folder of them"
    )
    for of, what in (
        ("kernel", "kernels of that name"),
        ("op", "ops of that name, with all device work in them,"),
        ("category", "kernels of that category"),
    ):
        parser.add_argument(
            f"--{of}",
            action="append",
            default=[],
            metavar="GLOB=F",
            help=f"{what} take F (0 to 1) of their time",
        )
    parser.add_argument("--host", type=float, metavar="F", help="host time is F (0 to 1) of what it was")
    parser.add_argument("--no-sync", action="store_true", help="no call waits for the device")
    parser.add_argument(
        "--fuse", action="store_true", help="chains of eager elementwise kernels are one kernel each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, with the whole path")
    parser.add_argument(
        "--limit", type=int, default=ROWS, help=f"parts of the path to print (default {ROWS}; 0: all)"
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.document.collect.replay import what_if_listing
    from kinetoscope.progress import load_shown
    from kinetoscope.render.json import indented
    from kinetoscope.render.terminal import show
    from kinetoscope.views import whatif as view

    asked = _asked(arguments)
    listing = what_if_listing(load_shown(arguments.inputs), asked)
    if arguments.json:
        print(indented(listing))
    else:
        show(view.listing(listing, arguments.limit))
    return 0


def _asked(arguments: argparse.Namespace) -> Asked:
    from functools import partial

    from kinetoscope.analysis.replay import what_if

    scales = [
        what_if.Scale(of, *_factor(f"--{of}", text))
        for of in ("kernel", "op", "category")
        for text in getattr(arguments, of)
    ]
    asked = [partial(what_if.scaled, scale=scale) for scale in scales]
    others = []
    if arguments.host is not None:
        _, factor = _factor("--host", f"*={arguments.host}")
        others.append(partial(what_if.host, factor=factor))
    if arguments.no_sync:
        others.append(what_if.without_waits)
    if arguments.fuse:
        others.append(what_if.fused)
    return [*asked, *others]


def _factor(option: str, text: str) -> tuple[str, float]:
    """``GLOB=F`` taken apart.

    Raises:
        UsageError: it is not so, or F is not from 0 to 1.
    """
    from kinetoscope.errors import UsageError

    glob, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = -1.0
    if not glob or not 0 <= factor <= 1:
        raise UsageError(
            f"{text.removeprefix('*=')!r} is no name and part of its time",
            where=option,
            mend=f"{option} '*mm*=0.5'",
        )
    return glob, factor
