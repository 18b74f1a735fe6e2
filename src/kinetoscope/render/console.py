"""The terminal as we use it: no markup, no guesses about numbers, prose of at most 200 columns."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kinetoscope.render.names import printable

WIDTH = 100  # of what does not go to a terminal
WIDEST = 200  # of what is read, on a terminal that has them
LISTING_WIDTH = 120  # of rows that do not go to a terminal, which says its width


class SafeConsole(Console):
    """Shows what came out of a file, and never lets the terminal obey it: this is where all of it leaves."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=printable(segment.text))


def standard_output(*, widest: int | None = WIDEST) -> Console:
    """stdout: coloured on a terminal unless NO_COLOR is set, plain where it goes to a file or pipe.

    Args:
        widest: columns to use at most; None uses all that the terminal has. What goes elsewhere has
            fewer: ``WIDTH``, or ``LISTING_WIDTH`` with None.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a name gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    elsewhere = LISTING_WIDTH if widest is None else WIDTH
    own = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else elsewhere
    width = min(own, widest or own)
    return SafeConsole(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
