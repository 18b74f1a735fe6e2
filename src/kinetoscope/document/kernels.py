"""Device time by kernel and by what kernels belong to: categories, ops, compiled graphs."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.compiled.rows import GraphCategory as GraphCategory
from kinetoscope.analysis.compiled.rows import GraphRow as GraphRow
from kinetoscope.analysis.origins.rows import *


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    device_time_us: float
    share_of_device_time: float
    share_of_window: float
    launches: int
    distinct_kernels: int


class KernelListing(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of ``category`` (None: of all) summed ``by`` what kernels belong to, most first."""

    by: str
    category: str | None
    device_time_us: float  # of all categories
    rows: list[ListingRow]
    shares: dict[str, float]  # every category's part of that
    is_noted: bool = True  # whether what they are summed by was recorded at all
