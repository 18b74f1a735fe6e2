"""A comparison as plain text: the terminal's, all of it."""

from __future__ import annotations

import io

from kinetoscope.document.difference import Difference
from kinetoscope.render.console import LISTING_WIDTH, SafeConsole
from kinetoscope.views.difference import print_difference


def render(found: Difference) -> str:
    """Without colour."""
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=LISTING_WIDTH, highlight=False, markup=False, emoji=False)
    print_difference(found, console, whole=True)
    return stream.getvalue()
