"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "a recording, a trace, a compile log, or a folder of them")
    parser.add_argument(
        "--proof",
        metavar="AFTER",
        help="a recording of the program after a change: what it saved, beside what was promised",
    )
    _options.as_json(parser)
    _options.limit(parser, 0, "findings")


def main(arguments: argparse.Namespace) -> int:
    from msgspec import structs

    from kinetoscope.document.collect.findings import listing
    from kinetoscope.progress import load_shown
    from kinetoscope.render.json import indented
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views import findings as view

    run = load_shown(arguments.inputs)
    found = listing(run, load_shown([arguments.proof]) if arguments.proof else None)
    if arguments.json:
        print(indented(view.document(found)))
    else:
        shown = structs.replace(found, findings=_options.first(found.findings, arguments.limit))
        show(view.listing(shown), standard_output())
    return 0
