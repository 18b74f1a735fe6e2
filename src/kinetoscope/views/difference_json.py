"""A comparison as JSON: the contract."""

from __future__ import annotations

from kinetoscope.document.difference import Difference
from kinetoscope.render.json import indented


def render(found: Difference) -> str:
    """Numbers are not rounded."""
    return f"{indented(found)}\n"
