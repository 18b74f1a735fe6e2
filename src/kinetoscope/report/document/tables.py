"""Tables of a trace, as SQL sees them and as it answers."""

from __future__ import annotations

import msgspec


class ColumnRow(msgspec.Struct, frozen=True, kw_only=True):
    """A column that can be queried."""

    table: str
    column: str
    type: str
    meaning: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a query found.

    Args:
        numeric: of each column, whether it holds numbers.
        rows: values in the order of ``columns``.
        left_out: rows beyond the limit.
    """

    columns: list[str]
    numeric: list[bool]
    rows: list[tuple[object, ...]]
    left_out: int
