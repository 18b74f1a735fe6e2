"""The terminal as we use it: no markup, no guesses about numbers, prose of at most 100 columns."""

from __future__ import annotations

import io
import shutil
import sys

from rich.console import Console

WIDTH = 100  # of a report
WIDEST = 200  # of a report on a terminal that has them
LISTING_WIDTH = 120  # of rows that do not go to a terminal, which says its width


def standard_output(*, widest: int | None = WIDTH) -> Console:
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
    return Console(file=sys.stdout, width=min(own, widest or own), highlight=False, markup=False, emoji=False)
