"""The terminal as we use it: at most 100 columns, no markup, no guesses about numbers."""

from __future__ import annotations

import io
import shutil
import sys

from rich.console import Console

WIDTH = 100


def standard_output() -> Console:
    """stdout: coloured on a terminal unless NO_COLOR is set; plain and 100 columns wide where it goes to a file."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a name gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH) if sys.stdout.isatty() else WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
