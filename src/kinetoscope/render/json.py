"""Rows of the document as JSON: the contract, exactly."""

from __future__ import annotations

import msgspec

from kinetoscope.recording.manifest import encoded


def indented(document: object) -> str:
    """One JSON document that a person can read; numbers are not rounded."""
    return msgspec.json.format(encoded(document), indent=2).decode()
