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
    from kinetoscope.document.collect.history import gathered
    from kinetoscope.errors import InputError
    from kinetoscope.render.json import indented
    from kinetoscope.render.terminal import show
    from kinetoscope.views import history as view

    folder: Path = arguments.folder
    if not folder.is_dir():
        raise InputError("that is no folder", where=str(folder), mend="name a folder that holds recordings")
    found = gathered(folder)
    if arguments.json:
        print(indented(found))
    else:
        show(view.listing(found))
    return 0
