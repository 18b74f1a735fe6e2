"""What PyTorch's allocator held, and what it asked of the driver."""

from __future__ import annotations

import msgspec


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the recording: the most that was allocated and reserved in it."""

    start_us: float
    allocated_bytes: int
    reserved_bytes: int | None


class HeldRow(msgspec.Struct, frozen=True, kw_only=True):
    """What lived at a device's peak and one op of one module and line (``file.py(12): function``) allocated;
    null: not recorded."""

    op: str | None
    module: str | None
    line: str | None
    bytes: int
    allocations: int


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """What PyTorch's allocator held of one device."""

    rank: int
    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_us: float
    peak_op: str | None
    first_allocated_bytes: int
    last_allocated_bytes: int
    allocations: int
    releases: int
    turned_over_bytes: int
    reserved_growths: int
    over_time: list[MemoryPoint]
    held_at_peak: list[HeldRow]
    """The most bytes first; with what follows they add up to the peak."""
    held_from_before_bytes: int | None
    """Of the peak what was allocated before the recording began; null where that is not known."""


class AllocatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the driver that takes or gives back device memory."""

    rank: int
    name: str
    calls: int
    calls_in_window: int
    host_us: float
    host_us_in_window: float
