"""``kinetoscope steps``: what a step of the program is, what it is made of, and what else it could be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.document import StepsListing

ROWS = 20

EPILOG = """\
example, and then, if it shows that a step should be something else, the option that it prints:
  kinetoscope steps REC
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "a recording")
    client = "what a client measured of the server: the JSON of vLLM's or SGLang's benchmark"
    parser.add_argument("--client", type=Path, metavar="FILE", help=client)
    _options.as_json(parser)
    _options.limit(parser, ROWS)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.errors import InputError
    from kinetoscope.progress import Reader, answered
    from kinetoscope.sources import client

    measured = None if arguments.client is None else client.read(arguments.client)

    def find(read: Reader) -> StepsListing | None:
        from kinetoscope.document.collect.steps import listing

        return listing(read(arguments.inputs), measured)

    found = answered(arguments.inputs, "kinetoscope.document:StepsListing", find, client=measured)
    from kinetoscope.views import steps as view

    if found is None:
        raise InputError(
            "nothing in it says what a step of the program is",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope run script.py` finds steps; `kinetoscope report` shows those of a trace",
        )
    if measured is not None and found.serving is None:
        raise InputError(
            "it has no steps of a server that worked on a device, to set next to a client's times",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope explain decode-gap` says which steps are known",
        )
    _options.answer(arguments, found, lambda: view.all_steps(found, arguments.limit))
    return 0
