"""Rows of the document as JSON: the contract, exactly."""

from __future__ import annotations

import msgspec

from kinetoscope.recording.manifest import encoded
from kinetoscope.render import names


def indented(document: object) -> str:
    """One JSON document that a person can read, on a terminal too; numbers are not rounded."""
    return names.escaped(msgspec.json.format(encoded(document), indent=2).decode())
