"""The difference of two peaks of memory: its owners, its parts and its lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from kinetoscope import numbers
from kinetoscope.comparison.memory import LineChange, MemoryChange, OwnerChange, PartChange
from kinetoscope.render import palette
from kinetoscope.render.blocks import Block, Heading, Text, field, place, table
from kinetoscope.views.memory import MOMENTS

Row = TypeVar("Row", PartChange, OwnerChange, LineChange)
SIDES = field("base", "bytes", "base_bytes"), field("new", "bytes", "new_bytes")


def headline(found: MemoryChange) -> str:
    """By how much the highest peak differs."""
    before, now = found.requested_bytes
    sizes = f"{numbers.size(before)} → {numbers.size(now)} allocated"
    if before == now:
        return f"peak of memory: {sizes}, the same"
    more = "more" if now > before else "less"
    share = f", {numbers.percent(abs(now - before) / before)} {more}" if before else ""
    return f"peak of memory: {sizes}, {_signed(now - before)}{share}"


def section(found: MemoryChange, most: int) -> Iterable[Block]:
    """Owners that differ, the parts of what was reserved, and lines that several owners share."""
    before, now = found.moments
    moments = MOMENTS[before] if before == now else f"{MOMENTS[before]} → {MOMENTS[now]}"
    sums = _signed(found.requested_bytes[1] - found.requested_bytes[0])
    yield Heading("Memory: who has more or less", f"{moments}; sums to {sums}")
    owners, lines = _differing(found.owners), _differing(found.lines)
    yield table(
        owners,
        field("difference", "number", _delta),
        field("role", "text", lambda row: Text(row.role, palette.memory(row.role))),
        field("owner", "name", "owner"),
        field("line", "text", lambda row: place(row.line)),
        *SIDES,
        field("allocations", "number", _allocations, "dim"),
        most=most,
        noun="owner",
        leave=(6, 4),
    )
    sums = _signed(found.reserved_bytes[1] - found.reserved_bytes[0])
    yield Heading("Memory: parts of what was reserved", f"sums to {sums}")
    yield table(
        _differing(found.parts),
        field("difference", "number", _delta),
        field("part", "text", "part"),
        *SIDES,
        most=most,
    )
    if len(lines) < len(owners):
        yield Heading("Memory by line", folded=True)
        yield table(
            lines,
            field("difference", "number", _delta),
            field("line", "text", lambda row: place(row.line) if row.line else "no line of the program"),
            *SIDES,
            most=most,
        )


def _differing(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.base_bytes != row.new_bytes]


def _delta(row: PartChange | OwnerChange | LineChange) -> str:
    return _signed(row.new_bytes - row.base_bytes)


def _signed(size: int) -> str:
    return f"{numbers.MINUS if size < 0 else '+'}{numbers.size(abs(size))}"


def _allocations(row: OwnerChange) -> str:
    before, now = row.allocations
    return f"{before:,} → {now:,} ×" if before != now else f"{now:,} ×"
