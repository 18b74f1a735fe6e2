"""Ranks compared: who waited for whom, why, and what it cost. Never a row per rank,
unless they are few or all are requested.
"""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.ranks.rows import *
from kinetoscope.analysis.serving.rows import Serving
from kinetoscope.document.findings import FindingsListing


class ClockRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks with one clock: how far it is ahead of the first one's in the middle of the recording, and how
    far from that nine of ten collectives end (null: too few to tell). Nothing finer can be concluded."""

    ranks: str
    host: str
    ahead_us: float
    drift_ppm: float
    residual_us: float | None


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind and size in one sort of process group, over all ranks.

    ``transfer_us`` is the last arrival's part, at the median; bandwidths are those of nccl-tests, GB/s;
    ``skew`` from the first rank's arrival to the last's. ``last_rank`` came last most often, ``last_times``
    of ``told`` instances in which that is known. ``incomplete`` instances lack ranks. ``share_of_link``: bus
    bandwidth over what a device's links move in one direction, where all are of one host and kind. ``uneven``
    (of all-to-alls; null where all move as much): the most loaded rank's bytes over the mean, at the median,
    and ``heaviest_rank``, which it is most often; ``bytes`` are that rank's.
    """

    group: str
    group_size: int | None
    groups: int
    kind: str
    bytes: int | None
    meetings: int
    incomplete: int
    transfer_us: float | None
    waiting_us: float
    skew_median_us: float | None
    skew_max_us: float | None
    last_rank: int | None
    last_times: int
    told: int
    algorithm_gbps: float | None
    bus_gbps: float | None
    share_of_link: float | None = None
    uneven: float | None = None
    heaviest_rank: int | None = None
    hosts: int | None = None  # on how many hosts the ranks of one group are; null where that is not known
    slowest_ranks: str | None = None
    """Of several groups the one whose transfers are slowest; ``slowest_bus_gbps`` is its own bus bandwidth,
    ``usual_bus_gbps`` the median group's."""
    slowest_bus_gbps: float | None = None
    usual_bus_gbps: float | None = None


class VolumeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that all-to-alls moved from one rank to another, in so many calls."""

    sender: int
    receiver: int
    bytes: int
    calls: int


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. ``blamed_us``: what all others waited for it; ``bubble_us``: what it waited in sends and
    receives."""

    rank: int
    host: str
    window_us: float
    busy_us: float
    compute_us: float
    waiting_us: float
    exposed_waiting_us: float
    exposed_transfer_us: float
    bubble_us: float
    blamed_us: float
    cause: str | None
    detail: str
    damages: list[str]


class SpreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure's distribution over ranks, as shares of each rank's window, and whose the extremes are."""

    what: str
    least: float
    p10: float
    median: float
    p90: float
    most: float
    least_rank: int
    most_rank: int


class SimilarRanksRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that compute for similar times, such as those of one pipeline stage, with the medians of their
    windows."""

    ranks: str
    count: int
    compute: float
    exposed_waiting: float
    exposed_transfer: float
    idle: float
    blamed_us: float


class LatenessRow(msgspec.Struct, frozen=True, kw_only=True):
    """Why ranks were late, over all of them; ``rank`` null: whose doing it was is unknown."""

    rank: int | None
    cause: str | None
    detail: str
    waited_us: float
    meetings: int


class CollectiveInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A collective: when each rank came and left, on one clock, from the first on, and of that what it waited
    for the others."""

    kind: str
    group: str
    step: str
    bytes: int | None
    ranks: list[int]
    arrived_us: list[float]
    left_us: list[float]
    waiting_us: list[float] = []


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the latest ranks cost the others, by step: a row per rank, a column per step."""

    ranks: list[int]
    steps: list[str]
    blamed_us: list[list[float]]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of ranks of one run; ``incomparable``: whose collectives end with no other rank's."""

    here: str
    count: int
    expected: int | None
    missing: str
    damaged: str
    incomparable: str
    verdict: RankVerdict
    clocks: list[ClockRow]
    collectives: list[CollectiveRow]
    late: list[LatenessRow]
    worst: list[RankRow]
    spread: list[SpreadRow]
    alike: list[SimilarRanksRow]
    ideal: IdealRow | None
    longest: CollectiveInstance | None  # the collective that was waited in most
    lateness: Lateness
    paces: Paces
    volumes: list[VolumeRow] = []  # of all-to-alls, the most first; of very many pairs those with most
    meetings: list[CollectiveInstance] = []
    """Of each sort of collectives the one that was waited in most; the first is ``longest``."""
    ranks: list[RankRow] = []  # all of them, by rank: where they are few, or all were requested
    dumps: list[str] = []  # by flight-recorder dumps, who is missing in which collective
    inspected: list[CollectiveRow] = []
    """As NCCL's Inspector logged them: no skew; of what does not end together no times either."""
    unread: list[str] = []


class RanksListing(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``report`` for many ranks: the comparison; what it finds (``of_ranks``), and the
    findings of one rank's trace, where it is here: of one that does the same as the slow one, else of the one
    whose window is the median; and the steps of the server that it is a rank of (``serving``)."""

    kinetoscope: str
    events: int
    bytes: int
    devices: dict[str, int]
    ranks: Ranks
    findings: FindingsListing | None = None
    findings_rank: int | None = None
    serving: Serving | None = None
    schema: str = "kinetoscope.ranks/1"
