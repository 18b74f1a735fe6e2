"""Aggregates of a column as plain numbers: Polars types them as whatever a column may hold."""

from __future__ import annotations


def whole(aggregate: object) -> int:
    """The minimum, maximum or median of a column of numbers, cut to an integer; 0 where it has none."""
    return int(aggregate) if isinstance(aggregate, int | float) else 0
