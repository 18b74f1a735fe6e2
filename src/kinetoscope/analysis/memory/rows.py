"""Where memory lay at the peak, who called for it, and how large a batch fits, as rows of the document."""

from __future__ import annotations

import msgspec


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the recorded batch fits."""

    # low, high: where what is reserved beyond the requested bytes grows as well, and where it does not
    low: float
    high: float
    # fixed_bytes, scaling_bytes: of the bytes requested at the moment that limits it: the peak of so much
    # larger a batch, which need not be that of the recorded one
    fixed_bytes: int
    scaling_bytes: int
    room_bytes: int  # what the device has for the allocator: all but what others, and the driver, hold


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A segment at the peak: memory that the allocator took from the driver in one piece.

    ``pieces`` are the role, or ``free``, and the bytes of what lies in it, by address, and sum to ``bytes``;
    ``pool`` is torch's pair of numbers, of which 0, 0 is the default pool."""

    address: int
    bytes: int
    stream: int
    pool: tuple[int, int]
    allocations: int
    free_bytes: int
    largest_hole_bytes: int
    pieces: list[tuple[str, int]]


class CallsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls one inside the other, as ``file:line function``, the innermost first, of a tree of all stacks at
    the peak: ``depth`` branches stand above them, and bytes and allocations are of all that is below."""

    depth: int
    frames: list[str]
    bytes: int
    allocations: int
