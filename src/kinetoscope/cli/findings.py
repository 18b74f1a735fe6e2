"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, a compile log, or a folder of them"
    )
    parser.add_argument(
        "--proof",
        metavar="AFTER",
        help="a recording of the program after a change: what it saved, beside what was promised",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def main(arguments: argparse.Namespace) -> int:
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
        show(view.listing(found), standard_output())
    return 0
