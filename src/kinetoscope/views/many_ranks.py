"""Many ranks compared: what ``kinetoscope report`` prints of them, and writes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from kinetoscope.document import RanksListing
from kinetoscope.errors import UsageError
from kinetoscope.render import html, names
from kinetoscope.render.console import WIDTH
from kinetoscope.render.json import indented
from kinetoscope.render.markdown import escape, grid_lines
from kinetoscope.render.table import Prose, drawn
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.listing import titled


def print_ranks(listing: RanksListing, console: Console) -> None:
    """The verdict, and tables whose length does not grow with the ranks."""
    console.print(Text(names.plain(" · ".join(rank_lines.title(listing))), style="dim"))
    for part in parts(listing):
        console.print(part)
    for problem in listing.ranks.unread:
        console.print(Text(names.plain(problem), style="yellow"))


def parts(listing: RanksListing) -> Iterable[RenderableType]:
    yield Text()
    for at, sentence in enumerate(rank_lines.lines(listing.ranks)):
        yield Prose(names.plain(sentence), style="" if at else "bold")
    for shown in rank_lines.grids(listing.ranks):
        yield Text()
        yield titled(shown.title, shown.basis)
        yield drawn(shown)


def rendered(listing: RanksListing, output: Path) -> str:
    """The listing as a file of that name holds it.

    Raises:
        UsageError: it is not written in that format.
    """
    match output.suffix.lower():
        case ".html":
            return html.render_ranks(listing)
        case ".json":
            return f"{indented(listing)}\n"
        case ".md":
            title = " · ".join(rank_lines.title(listing))
            lines = [f"# {escape(title)}", "", *_paragraphs(listing)]
            return "\n".join(lines) + "\n"
        case ".txt":
            page = io.StringIO()
            print_ranks(listing, Console(file=page, width=WIDTH, color_system=None, highlight=False))
            return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"
        case suffix:
            raise UsageError(
                f"many ranks cannot be written as {suffix or 'a file without a suffix'}",
                where=f"-o {output}",
                mend="end the name in .html, .json, .md or .txt, or name the traces of a few ranks",
            )


def _paragraphs(listing: RanksListing) -> Iterable[str]:
    for sentence in (*rank_lines.lines(listing.ranks), *listing.ranks.unread):
        yield from (escape(sentence), "")
    for shown in rank_lines.grids(listing.ranks):
        yield from grid_lines(shown)
