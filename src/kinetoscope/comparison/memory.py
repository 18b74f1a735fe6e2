"""The memory at the peaks of two runs: which parts, owners and lines the difference is of, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
import polars as pl

from kinetoscope.analysis.memory.peak import DeviceHistory, histories, holders, split
from kinetoscope.sources.run import LoadedRun


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what was reserved at either peak, in bytes."""

    part: str
    base_bytes: int
    new_bytes: int


class OwnerChange(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's memory at either peak. ``line`` is that of the new run, of the base where only that has it;
    ``allocations`` are before and now."""

    role: str
    owner: str
    line: str | None
    base_bytes: int
    new_bytes: int
    allocations: tuple[int, int]


class LineChange(msgspec.Struct, frozen=True, kw_only=True):
    """A line's memory at either peak; None: no line of the program's."""

    line: str | None
    base_bytes: int
    new_bytes: int


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """The highest peak of either run. The differences of ``parts`` sum to that of ``reserved_bytes``, those
    of ``owners`` and of ``lines`` each to that of ``requested_bytes``; all largest first."""

    moments: tuple[str, str]
    requested_bytes: tuple[int, int]
    reserved_bytes: tuple[int, int]
    parts: list[PartChange]
    owners: list[OwnerChange]
    lines: list[LineChange]


def memory_change(base: LoadedRun, new: LoadedRun) -> MemoryChange | None:
    """None where the allocator's history of one of them was not recorded."""
    before, now = _highest(base), _highest(new)
    if before is None or now is None:
        return None
    owners = _owners(holders(before), holders(now))
    lines: dict[str | None, tuple[int, int]] = {}
    for row in owners:
        known = lines.get(row.line, (0, 0))
        lines[row.line] = known[0] + row.base_bytes, known[1] + row.new_bytes
    sides = [dict(split(one).select("part", "bytes").iter_rows()) for one in (before, now)]
    names = dict.fromkeys([*sides[1], *sides[0]])
    parts = ((part, sides[0].get(part, 0), sides[1].get(part, 0)) for part in names)
    return MemoryChange(
        moments=(before.moment, now.moment),
        requested_bytes=(before.requested, now.requested),
        reserved_bytes=(before.reserved, now.reserved),
        parts=_largest(PartChange(part=part, base_bytes=a, new_bytes=b) for part, a, b in parts),
        owners=_largest(owners),
        lines=_largest(LineChange(line=line, base_bytes=a, new_bytes=b) for line, (a, b) in lines.items()),
    )


def _highest(run: LoadedRun) -> DeviceHistory | None:
    found = (one.history for one in histories(run).found)
    return max(found, key=lambda history: history.requested, default=None)


def _owners(base: pl.DataFrame, new: pl.DataFrame) -> list[OwnerChange]:
    """Owners of either peak, matched by their line; what is left, by file and size, since lines shift."""
    named = ["role", "owner", "line"]
    sides = [table.select(*named, "bytes", "allocations") for table in (base, new)]
    same = _joined(sides[0], sides[1], named)
    file, whose = pl.col("line").str.replace(r":\d+$", ""), pl.col("owner").str.replace_all(r":\d+", ":")
    nth = pl.int_range(pl.len()).over("role", "whose", "file")
    left = [
        one.join(other, on=named, how="anti", nulls_equal=True)
        .with_columns(file=file, whose=whose)
        .with_columns(nth=nth)
        for one, other in (sides, sides[::-1])
    ]
    moved = _joined(left[0], left[1], ["role", "whose", "file", "nth"])
    same = same.filter(pl.col("bytes").is_not_null(), pl.col("bytes_new").is_not_null())
    return [
        OwnerChange(
            role=row["role"],
            owner=row["owner_new"] or row["owner"],
            line=row["line_new"] if row["owner_new"] else row["line"],
            base_bytes=row["bytes"] or 0,
            new_bytes=row["bytes_new"] or 0,
            allocations=(row["allocations"] or 0, row["allocations_new"] or 0),
        )
        for table in (same.with_columns(owner_new="owner", line_new="line"), moved)
        for row in table.iter_rows(named=True)
    ]


def _joined(base: pl.DataFrame, new: pl.DataFrame, on: list[str]) -> pl.DataFrame:
    return base.join(
        new, on=on, how="full", coalesce=True, nulls_equal=True, suffix="_new", maintain_order="left_right"
    )


Row = TypeVar("Row", PartChange, OwnerChange, LineChange)


def _largest(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -abs(row.new_bytes - row.base_bytes))
