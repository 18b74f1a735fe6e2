"""``kinetoscope history``: what the step took over many recordings, and where it changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.comparison.history import History

WRITTEN = (".json", ".md", ".txt")

EPILOG = """\
example, of a folder that gets a recording of each version:
  kinetoscope history recordings
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder of recordings, traces, reports kept as .json"
    )
    _options.output(parser, "write a file instead: .json .md .txt")
    _options.as_json(parser)
    _options.limit(parser, 0, "the latest recordings")


def main(arguments: argparse.Namespace) -> int:
    from msgspec import structs

    from kinetoscope.progress import Reader, answered
    from kinetoscope.render import destination
    from kinetoscope.render.formats import View, renderer

    file: Path | None = arguments.output
    render = renderer(destination.check(file, [str(arguments.folder)]), WRITTEN) if file else None

    def find(read: Reader) -> History:
        from kinetoscope.document.collect.history import gathered

        return gathered(arguments.folder, read)

    found = answered([str(arguments.folder)], "kinetoscope.comparison.history:History", find)
    from kinetoscope.views import history as view

    shown = structs.replace(found, rows=found.rows[-arguments.limit :])  # -0: all of them
    if file and render:
        written = View(document=lambda: found, blocks=lambda _: list(view.listing(shown)))
        _options.write(file, render(written).encode())
        return 0
    _options.answer(arguments, found, lambda: view.listing(shown))
    return 0
