"""``kinetoscope steps``: what a step of the program is, what it is made of, and what else it could be."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "a recording")
    _options.as_json(parser)
    _options.limit(parser, ROWS)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.document.collect.steps import listing
    from kinetoscope.errors import InputError
    from kinetoscope.progress import load_shown
    from kinetoscope.views import steps as view

    found = listing(load_shown(arguments.inputs))
    if found is None:
        raise InputError(
            "nothing in it says what a step of the program is",
            where=" ".join(arguments.inputs),
            hint="`kinetoscope run script.py` finds steps; `kinetoscope report` shows those of a trace",
        )
    _options.answer(arguments, found, lambda: view.all_steps(found, arguments.limit))
    return 0
