"""``kinetoscope explain``: what a rule, op, kernel name or runtime call means."""

from __future__ import annotations

import argparse

EPILOG = """\
examples:
  kinetoscope explain launch-bound                      a word of a report
  kinetoscope explain nvjet_tst_128x128_64x6_2x1_v_bz_NNT    the parts of a kernel's name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    word = "a rule, or any name met in a trace; without it, the list of all"
    parser.add_argument("word", nargs="?", metavar="RULE|TERM", help=word)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.findings.glossary.explanation import explanation, glossary
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views import explanation as view

    if arguments.word is None:
        show(view.glossary(glossary()), standard_output())
    else:
        show(view.explanation(explanation(arguments.word)), standard_output())
    return 0
