"""``program/rank0.json`` of a recording: the source of the program, by path."""

from __future__ import annotations

import msgspec

SCHEMA = "kinetoscope.program/1"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """``files``: the text of each by its absolute path, as it stood when the program ended."""

    schema: str = SCHEMA
    files: dict[str, str]
