"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kinetoscope.cli import _many, _options

if TYPE_CHECKING:
    from kinetoscope.render.blocks import Block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording, a trace, a compile log, or a folder of them; of many ranks parts and buckets too",
    )
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

    if _many.are_many(arguments.inputs):
        _of_many(arguments)
        return 0
    run = load_shown(arguments.inputs)
    found = listing(run, load_shown([arguments.proof]) if arguments.proof else None)

    def blocks() -> Iterable[Block]:
        shown = _options.first(found.findings, arguments.limit)
        return view.listing(structs.replace(found, findings=shown))

    _options.answer(arguments, view.document(found), blocks, as_page=True)
    return 0


def _of_many(arguments: argparse.Namespace) -> None:
    """Print findings of the comparison of many ranks, then those of the trace of one of them."""
    from kinetoscope.errors import InputError, UsageError
    from kinetoscope.views import findings, ranks

    if arguments.proof:
        raise UsageError("--proof is of few ranks", hint="name the trace of one of them, before and after")
    found = _many.compared(arguments.inputs)
    if found.findings is None:
        raise InputError("there is no trace of a rank in it", where=arguments.inputs[0])
    _options.answer(
        arguments,
        findings.document(found.findings),
        lambda: ranks.what_to_change(found, arguments.limit),
        as_page=True,
    )
