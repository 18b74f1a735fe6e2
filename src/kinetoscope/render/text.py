"""The terminal's report, whole, as plain text, for mail and files."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from kinetoscope.document import Report
from kinetoscope.render.console import WIDTH
from kinetoscope.views.overview import print_report


def render(report: Report, inputs: Sequence[str]) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them), without colour."""
    page = io.StringIO()
    print_report(
        report, inputs, Console(file=page, width=WIDTH, color_system=None, highlight=False), whole=True
    )
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"
