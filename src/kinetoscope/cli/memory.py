"""``kinetoscope memory``: what takes a device's memory at its peak, and what grows."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording (`run --memory`), a snapshot of torch's allocator (.pickle), a memory timeline (.json), "
        "or a trace",
    )
    _options.as_json(parser, ", with every row")
    _options.limit(parser, ROWS)
    at = "the state of the allocator so many milliseconds after its history began, instead of at the peak"
    parser.add_argument("--at", type=float, metavar="MS", help=at)
    _options.flag(parser, "--stacks", "also a tree of all calls that allocated what was there")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.document.collect.memory import listing
    from kinetoscope.errors import InputError
    from kinetoscope.progress import load_shown
    from kinetoscope.views import memory as view

    run = load_shown(arguments.inputs)
    found = listing(run, None if arguments.at is None else 1000 * arguments.at)
    if not (found.peaks or found.memory):
        raise InputError(
            "; ".join(found.unread) or "no device memory was recorded in it",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope run --memory script.py` follows the memory of GPUs, and of them alone",
        )
    _options.answer(arguments, found, lambda: view.listing(found, arguments.limit, stacks=arguments.stacks))
    return 0
