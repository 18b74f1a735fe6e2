"""Rows of the document as JSON: the contract, exactly."""

from __future__ import annotations

import msgspec


def indented(document: object) -> str:
    """One JSON document that a person can read; numbers are not rounded."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
