"""The report as JSON: the contract, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinetoscope.document import Report


def render(report: Report, inputs: Sequence[str]) -> str:
    """One JSON document; numbers are not rounded. ``inputs`` is for renderers that name them."""
    return f"{indented(report)}\n"


def indented(document: object) -> str:
    """Rows of the document as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
