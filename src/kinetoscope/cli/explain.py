"""``kinetoscope explain``: what a rule, op, kernel name or runtime call means."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word",
        nargs="?",
        metavar="RULE|TERM",
        help="a rule, or any name met in a trace; without it, the list of all",
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.findings.glossary.explanation import explanation, glossary
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views import explanation as view

    if arguments.word is None:
        show(view.glossary(glossary()), standard_output())
    else:
        show(view.explanation(explanation(arguments.word)), standard_output())
    return 0
