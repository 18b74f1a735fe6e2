"""``kinetoscope history``: what the step took over many recordings, and where it changed."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder of recordings, traces, reports kept as .json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.report.diff.history import gathered
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.progress import load_shown
    from kinetoscope.report.verbs.history import print_history, render_json

    found = gathered(arguments.folder, load_shown)
    if arguments.json:
        print(render_json(found))
    else:
        print_history(found, standard_output(widest=None))
    return 0
