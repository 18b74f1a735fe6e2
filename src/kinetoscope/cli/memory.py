"""``kinetoscope memory``: what takes a device's memory at its peak, and what grows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.document import MemoryPeaks

ROWS = 20

EPILOG = """\
example:
  kinetoscope run --memory -o REC train.py
  kinetoscope memory REC

then:
  kinetoscope tune --fits REC -- train.py --batch 128   the largest batch that fits
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording (`run --memory`), a snapshot of torch's allocator (.pickle), a memory timeline (.json), "
        "or a trace",
    )
    _options.as_json(parser, ", with every row")
    _options.limit(parser, ROWS)
    at = "the state of the allocator so many milliseconds after its history began, instead of at the peak"
    parser.add_argument("--at", type=_options.at_least(0, float), metavar="MS", help=at)
    _options.flag(parser, "--stacks", "also a tree of all calls that allocated what was there")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.errors import InputError
    from kinetoscope.progress import Reader, answered

    def find(read: Reader) -> MemoryPeaks:
        from kinetoscope.document.collect.memory import listing

        return listing(read(arguments.inputs), None if arguments.at is None else 1000 * arguments.at)

    found = answered(arguments.inputs, "kinetoscope.document:MemoryPeaks", find, at=arguments.at)
    from kinetoscope.views import memory as view

    if not (found.peaks or found.memory):
        raise InputError(
            "; ".join(found.unread) or "no device memory was recorded in it",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope run --memory script.py` follows the memory of GPUs, and of them alone",
        )
    _options.answer(arguments, found, lambda: view.listing(found, arguments.limit, stacks=arguments.stacks))
    return 0
