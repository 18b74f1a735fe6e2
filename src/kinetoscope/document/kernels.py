"""Device time by kernel and by what kernels belong to: categories, ops, compiled graphs."""

from __future__ import annotations

import msgspec


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    device_time_us: float
    share_of_device_time: float
    share_of_window: float
    launches: int
    distinct_kernels: int


class KernelOp(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    launches: int
    device_time_us: float


class ListingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time under one name: of a kernel, or of whatever kernels are summed by."""

    name: str
    short_name: str
    category: str
    launches: int
    device_time_us: float
    share_of_device_time: float
    mean_us: float
    median_us: float
    min_us: float
    max_us: float
    p90_us: float


class KernelRow(ListingRow, frozen=True, kw_only=True):
    """``bytes`` and ``flops`` are of all launches, null unless the cost of each is known;
    ``speed_of_light`` is of the ``costed_launches`` whose cost model holds: their time at the device's peaks,
    over the time they took."""

    ops: list[KernelOp]
    kind: str = "kernel"
    graph: str | None = None
    source: str | None = None
    bytes: int | None = None
    flops: int | None = None
    speed_of_light: float | None = None
    costed_launches: int = 0
    of_peak: float | None = None
    """``speed_of_light``, or else what the compile log knows of the kernel."""
    could_save_us: float | None = None
    """What it takes beyond its time at the device's peaks, of the launches whose cost is known."""


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of torch's own op table; rows of one name differ in ``kind``."""

    name: str
    kind: str = "cpu_op"
    calls: int
    host_self_us: float
    host_total_us: float
    device_self_us: float
    device_total_us: float


class GraphCategory(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    launches: int
    device_time_us: float
    share_of_graph: float
    share_of_device_time: float


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph that was called, and its device time by category."""

    graph: str
    hash: str
    compile_id: str | None
    direction: str
    calls: int
    host_us: float
    launches: int
    device_time_us: float
    share_of_device_time: float
    categories: list[GraphCategory]


class KernelListing(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of ``category`` (None: of all) summed ``by`` what kernels belong to, most first.

    Args:
        device_time_us: of all categories.
        shares: every category's part of that.
    """

    by: str
    category: str | None
    device_time_us: float
    rows: list[ListingRow]
    shares: dict[str, float]
