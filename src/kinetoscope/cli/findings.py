"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetoscope.cli import _many, _options

if TYPE_CHECKING:
    from kinetoscope.document import FindingsListing

EPILOG = """\
examples:
  kinetoscope findings REC --limit 3
  kinetoscope findings BEFORE --proof AFTER             what a change saved, next to what was promised

then:
  kinetoscope explain overhead-bound                    what a finding means, and how it is decided
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording, a trace, a compile log, or a folder of them; of many ranks parts and buckets too",
    )
    proof = "a recording of the program after a change: what it saved, next to what was promised"
    parser.add_argument("--proof", metavar="AFTER", help=proof)
    _options.as_json(parser)
    _options.limit(parser, 0, "findings")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import Reader, answered

    if _many.are_many(arguments.inputs):
        _of_many(arguments)
        return 0
    inputs, proof = arguments.inputs, [arguments.proof] if arguments.proof else []

    def find(read: Reader) -> FindingsListing:
        from kinetoscope.document.collect.findings import listing

        return listing(read(inputs), read(proof) if proof else None)

    found = answered([*inputs, *proof], "kinetoscope.document:FindingsListing", find, proof=bool(proof))
    from kinetoscope.views import findings as view

    _options.answer(
        arguments, view.document(found), lambda: view.listing(found, arguments.limit), as_page=True
    )
    return 0


def _of_many(arguments: argparse.Namespace) -> None:
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
