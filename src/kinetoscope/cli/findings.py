"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.render.blocks import Block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "a recording, a trace, a compile log, or a folder of them")
    parser.add_argument(
        "--proof",
        metavar="AFTER",
        help="a recording of the program after a change: what it saved, next to what was promised",
    )
    _options.as_json(parser)
    _options.limit(parser, 0, "findings")


def main(arguments: argparse.Namespace) -> int:
    from msgspec import structs

    from kinetoscope.document.collect.findings import listing
    from kinetoscope.progress import load_shown
    from kinetoscope.views import findings as view

    run = load_shown(arguments.inputs)
    found = listing(run, load_shown([arguments.proof]) if arguments.proof else None)

    def blocks() -> Iterable[Block]:
        shown = _options.first(found.findings, arguments.limit)
        return view.listing(structs.replace(found, findings=shown))

    _options.answer(arguments, view.document(found), blocks, as_page=True)
    return 0
