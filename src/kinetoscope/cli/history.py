"""``kinetoscope history``: what the step took over many recordings, and where it changed."""

from __future__ import annotations

import argparse
from pathlib import Path

from kinetoscope.cli import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder of recordings, traces, reports kept as .json"
    )
    _options.as_json(parser)
    _options.limit(parser, 0, "recordings, the last ones,")


def main(arguments: argparse.Namespace) -> int:
    from msgspec import structs

    from kinetoscope.document.collect.history import gathered
    from kinetoscope.progress import load_shown
    from kinetoscope.render.console import standard_output
    from kinetoscope.views.history import print_history, render_json

    found = gathered(arguments.folder, load_shown)
    if arguments.json:
        print(render_json(found))
    else:
        rows = found.rows[-arguments.limit :] if arguments.limit else found.rows
        print_history(structs.replace(found, rows=rows), standard_output(widest=None))
    return 0
