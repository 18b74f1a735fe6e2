"""From two inputs to what is shown of them, in whichever form was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TextIO, cast

from kinetoscope.document.difference import Difference
from kinetoscope.render import names
from kinetoscope.render.formats import chosen
from kinetoscope.render.json import indented as indented

# suffix → module with `render(found) -> str`
FORMATS = {
    ".html": "kinetoscope.views.difference_page",
    ".json": "kinetoscope.views.difference_json",
    ".md": "kinetoscope.views.difference_markdown",
    ".txt": "kinetoscope.views.difference_text",
}


class Renderer(Protocol):
    def __call__(self, found: Difference) -> str: ...


def renderer(path: Path) -> Renderer:
    """The renderer for a file of that name.

    Raises:
        UsageError: no format has that suffix.
    """
    return cast(Renderer, chosen(path, FORMATS).render)


def print_difference(found: Difference, *, whole: bool) -> None:
    """On the terminal."""
    from kinetoscope.render.console import WIDEST, standard_output
    from kinetoscope.views.difference import print_difference as show

    show(found, standard_output(widest=WIDEST), whole=whole)


def complain(found: Difference, stream: TextIO) -> None:
    """The gates that failed, each with who did it."""
    for gate in found.gates:
        if gate.failed:
            place = f" ({names.plain(gate.source)})" if gate.source else ""
            culprit = f": {names.plain(gate.culprit)}{place}" if gate.culprit else ""
            stream.write(f"kinetoscope: {gate.gate} failed: {names.plain(gate.words)}{culprit}\n")
