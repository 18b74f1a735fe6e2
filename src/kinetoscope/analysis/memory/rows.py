"""How large a batch fits, as a row of the document."""

from __future__ import annotations

import msgspec


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the recorded batch fits.

    Attributes:
        low, high: where what is reserved beyond the requested bytes grows as well, and where it does not.
        fixed_bytes, scaling_bytes: of the bytes requested at the moment that limits it: the peak of so much
            larger a batch, which need not be that of the recorded one.
        room_bytes: what the device has for the allocator: all but what others, and the driver, hold.
    """

    low: float
    high: float
    fixed_bytes: int
    scaling_bytes: int
    room_bytes: int
