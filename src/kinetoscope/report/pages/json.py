"""The report as JSON: the contract, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinetoscope.report.document import Report


def render(report: Report, inputs: Sequence[str]) -> str:
    """One JSON document, indented; numbers are not rounded. ``inputs`` is for renderers that name them."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
