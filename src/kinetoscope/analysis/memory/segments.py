"""Where memory lay at a moment: the segments that the allocator had of the driver, and the holes in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import polars as pl
from msgspec import structs

from kinetoscope.analysis.memory.lifetimes import GIVES, TAKES
from kinetoscope.analysis.memory.peak import DeviceHistory, block_sizes, segments_then
from kinetoscope.analysis.memory.rows import SegmentRow
from kinetoscope.snapshot.model import MAP, UNMAP
from kinetoscope.trace.schema import whole

FREE = "free"


def segments(history: DeviceHistory, drawn: int | None = None) -> list[SegmentRow]:
    """The segments at the peak (``DeviceHistory.place``), most free bytes first, those after the ``drawn``
    first ones without their pieces; none where segments grow by pages and the history goes on."""
    snapshot = history.snapshot
    entries = snapshot.entries.filter(pl.col("device") == history.device)
    is_last = history.place == whole(history.curve.table["place"].max())
    if not is_last and entries["action"].is_in([MAP, UNMAP]).any():
        return []
    there = segments_then(history)
    blocks = history.at_peak.select("address", "role").with_columns(
        size=block_sizes(history, history.at_peak)
    )
    laid = blocks.sort("address").join_asof(there.select("address", "segment"), on="address")
    by_segment: dict[int, list[tuple[int, str, int]]] = {}
    for address, role, size, segment in laid.select("address", "role", "size", "segment").iter_rows():
        by_segment.setdefault(segment, []).append((address, role, size))
    found: list[SegmentRow] = []
    for address, size, stream, pool in there.select("address", "bytes", "stream", "pool").iter_rows():
        inside = by_segment.get(address, [])
        pieces = [*_pieces(address, size, inside)]
        holes = [bytes for role, bytes in pieces if role == FREE]
        found.append(
            SegmentRow(
                address=address, bytes=size, stream=stream, pool=snapshot.pools[pool],
                allocations=len(inside), pieces=pieces,
                free_bytes=sum(holes), largest_hole_bytes=max(holes, default=0),
            )
        )  # fmt: skip
    found.sort(key=lambda one: -one.free_bytes)
    return [
        one if drawn is None or place < drawn else structs.replace(one, pieces=[])
        for place, one in enumerate(found)
    ]


Ranges = list[tuple[int, int, int]]  # address, bytes, stream


def before(history: DeviceHistory, place: int) -> Ranges:
    """The memory that the allocator had of the driver before the entry at a place: that at the snapshot, and
    the history backwards. Segments that grow by pages are as many ranges as were mapped."""
    snapshot = history.snapshot
    of_device = pl.col("device") == history.device
    there: Ranges = snapshot.segments.filter(of_device).select("address", "bytes", "stream").rows()
    entries = snapshot.entries.with_row_index("place").filter(of_device, pl.col("place") >= place)
    changes = entries.filter(pl.col("action").is_in([*TAKES, *GIVES]))
    for action, *change in changes.reverse().select("action", "address", "bytes", "stream").iter_rows():
        address, size, stream = change
        there = _without(there, address, size) if action in TAKES else [*there, (address, size, stream)]
    return sorted(there)


def _without(ranges: Ranges, address: int, size: int) -> Ranges:
    """The ranges, and what is left of those that reach into the one that goes."""
    found: Ranges = []
    for one in ranges:
        start, bytes, stream = one
        end, until = start + bytes, address + size
        if end <= address or until <= start:
            found.append(one)
            continue
        found += [(start, address - start, stream)] if start < address else []
        found += [(until, end - until, stream)] if until < end else []
    return found


def _pieces(at: int, size: int, blocks: list[tuple[int, str, int]]) -> Iterator[tuple[str, int]]:
    """Neighbours of one role are one piece."""
    pieces: list[tuple[str, int]] = []
    end = at + size
    for address, role, taken in blocks:
        if address > at:
            pieces.append((FREE, address - at))
        pieces.append((role, min(taken, end - address)))
        at = address + taken
    if at < end:
        pieces.append((FREE, end - at))
    for role, same in groupby(pieces, key=lambda piece: piece[0]):
        yield role, sum(bytes for _, bytes in same)
