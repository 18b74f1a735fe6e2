"""How kernels came about: from a step through annotations and ops to the launch."""

from __future__ import annotations

import msgspec


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    p90: float


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chain.

    Args:
        kind: its category in the trace; ``step`` for a step.
        event: its position in the file.
        since_us: its start, from that of the chain's first event.
        label: the name as a listing shows it; None for a library's frame, which is only counted.
    """

    kind: str
    name: str
    start_us: float
    duration_us: float
    event: int
    since_us: float
    label: str | None


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one kernel with the same chain of names above them.

    Args:
        rank: whose launch the median one is; ``ranks``: how many have such launches.
        latency_us: from the launching call's start to the work's; null where no launch was recorded.
        queue_delay_us: the part of it in which earlier work of the stream had not ended.
        links: of the median launch, from the outermost host event around it to the kernel.
        forward: of backward work, the same to its forward op.
    """

    rank: int
    ranks: int
    launches: int
    device_time_us: float
    share_of_device_time: float
    latency_us: Quantiles | None
    queue_delay_us: Quantiles | None
    links: list[Link]
    forward: list[Link]


class ChainListing(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of the kernels whose name contains or fits ``name``, most device time first."""

    name: str
    launches: int
    device_time_us: float
    chains: list[Chain]
