"""The formats of files: a new one is its renderer and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kinetoscope.errors import UsageError
from kinetoscope.render.blocks import Block
from kinetoscope.render.sarif import SarifResult

Extent = Literal["screen", "whole", "file", "page"]


class View(Struct, frozen=True):
    """Something that is shown, in every form that it has; each is made when it is needed."""

    document: Callable[[], object]  # the rows, which JSON holds
    # what a reader sees: a terminal, all of it on a terminal, a file with room for everything, a page
    blocks: Callable[[Extent], Sequence[Block]]
    page: Callable[[], str] | None = None  # HTML, where it has a page
    # what code hosts show at lines, with the version of what found it
    results: Callable[[], tuple[str, Sequence[SarifResult]]] | None = None
    width: int | None = None


def _json(view: View) -> str:
    from kinetoscope.render.json import indented

    return f"{indented(view.document())}\n"


def _markdown(view: View) -> str:
    from kinetoscope.render import markdown

    return markdown.render(view.blocks("file"))


def _text(view: View) -> str:
    from kinetoscope.render import terminal

    return terminal.text(view.blocks("whole"), view.width or terminal.WIDTH)


def _html(view: View) -> str:
    assert view.page is not None
    return view.page()


def _sarif(view: View) -> str:
    from kinetoscope.render import sarif

    assert view.results is not None
    return sarif.render(*view.results())


FORMATS: dict[str, Callable[[View], str]] = {
    ".html": _html,
    ".json": _json,
    ".md": _markdown,
    ".txt": _text,
    ".sarif": _sarif,
}
ALL = tuple(FORMATS)
COMPARED = tuple(suffix for suffix in FORMATS if suffix != ".sarif")


def renderer(path: Path, suffixes: Sequence[str] = ALL) -> Callable[[View], str]:
    """The renderer for a file of that name. Raises UsageError where none of the formats has that suffix."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise UsageError(
            f"cannot tell a format from {path.suffix or 'a name without a suffix'}",
            where=f"-o {path}",
            hint=f"end the name in {', '.join(suffixes)}",
        )
    return FORMATS[suffix]
