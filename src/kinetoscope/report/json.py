"""The report as JSON: the contract, exactly."""

from __future__ import annotations

import msgspec

from kinetoscope.report.document import Report


def render(report: Report) -> str:
    """One JSON document, indented; numbers are not rounded."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
