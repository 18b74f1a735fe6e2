"""Operators, device time by what it belongs to, and how kernels came about, as rows of the document."""

from __future__ import annotations

import msgspec


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    p90: float


class Link(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # its category in the trace; ``step`` for a step
    name: str
    start_us: float
    duration_us: float
    event: int  # its position in the file
    since_us: float  # its start, from that of the chain's first event
    label: str | None  # the name as a listing shows it; None for a library's frame, which is only counted


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one kernel that came about in the same way, by the same names, in all steps."""

    # whose launch the median one is (of an even count, the shorter of the middle two); ``ranks``: how many
    # have such launches
    rank: int
    ranks: int
    launches: int
    device_time_us: float
    share_of_device_time: float
    # from the launching call's start to the work's; null where no launch was recorded. Work that starts
    # before its launch (clocks that disagree) is left out
    latency_us: Quantiles | None
    queue_delay_us: Quantiles | None  # the part of it in which earlier work of the stream had not ended
    links: list[Link]  # of the median launch, from the outermost host event around it to the kernel
    forward: list[Link]  # of backward work, the same to its forward op


class ChainListing(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of the kernels whose name contains or fits ``name``, most device time first."""

    name: str
    launches: int
    device_time_us: float
    chains: list[Chain]


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of torch's own op table; rows of one name differ in ``kind``: the host event's category, or
    ``kernel``, ``memcpy``, ``memset``, ``device annotation``. ``line`` is that of the program in whose calls
    most of its time passed (``train.py:12 step``), where lines were noted."""

    name: str
    kind: str = "cpu_op"
    calls: int
    host_self_us: float
    host_total_us: float
    device_self_us: float
    device_total_us: float
    line: str | None = None


class KernelOp(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    launches: int
    device_time_us: float


class ListingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time under one name: of a kernel, or of whatever kernels are summed by.

    ``category`` is the one with most of the time, ``launches`` are device events, and the share is of all
    device time, filtered or not. Quantiles interpolate linearly between the two nearest ranks, so the median
    of an even count is the mean of the middle two."""

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
    waves: float | None = None
    """The blocks of the grid over those that the device can hold at a time: the median of the launches."""
    launches_below_device: int | None = None
    """Launches of fewer blocks than their device has multiprocessors; null where a count is not known."""


class KernelRow(ListingRow, frozen=True, kw_only=True):
    """``bytes`` and ``flops`` are of all launches, null unless the cost of each is known; ``speed_of_light``
    is of the ``costed_launches`` whose cost model holds: their time at the device's peaks, over the time they
    took."""

    ops: list[KernelOp]
    kind: str = "kernel"
    graph: str | None = None
    source: str | None = None
    bytes: int | None = None
    flops: int | None = None
    speed_of_light: float | None = None
    costed_launches: int = 0
    of_peak: float | None = None  # ``speed_of_light``, or else what the compile log knows of the kernel
    could_save_us: float | None = None
    """Its time beyond that at the device's peaks, of the launches whose cost is known."""
