"""Who was late among ranks, and what it costs, as rows of the document."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class PaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, or similar ranks, in each step: medians; null where none of them recorded it.

    ``own_us`` is the step less the waiting for other ranks that nothing hid. ``slowest`` is whose own time
    was longest, ``blamed_us`` what all others waited for these ranks.
    """

    ranks: str
    count: int
    took_us: list[float | None]
    own_us: list[float | None]
    slowest: list[int | None]
    slowest_us: list[float | None]
    blamed_us: list[float]
    place: str = ""  # of ``Paces.places``: the host, or the place in the group

    def longer(self, usual_us: Sequence[float | None]) -> float:
        """By which share its own time is longer than ``usual_us``, over the steps that it has."""
        known = [
            (own, usual)
            for own, usual in zip(self.own_us, usual_us, strict=True)
            if own is not None and usual
        ]
        return sum(own for own, _ in known) / sum(usual for _, usual in known) - 1 if known else 0.0


class Paces(msgspec.Struct, frozen=True, kw_only=True):
    """How long every step took, at the median over ranks, and then rank by rank, or by groups of similar
    ranks, those apart that were waited for most. Of many steps several are one column: their means.
    ``places``: the ranks of each host, and of each place in process groups of one name (their tensor-parallel
    ranks 0, 1, …), the slowest first."""

    steps: list[str]
    took_us: list[float | None]
    own_us: list[float | None]
    rows: list[PaceRow]
    places: dict[str, list[PaceRow]] = {}


LINK = "link"  # a cause
# Causes that are work which has to be done: put right, its peers do a part of it.
TO_SHARE = {"more work", "more data", "compute"}
# By the cause: what is seen of the late rank, and what to look at.
WHY = {
    "slow kernel": ("one kernel is slower there", "look at its input"),
    "clocks": ("all kernels are slower there, as on a throttled device", "look at clocks and temperature"),
    "more work": ("more kernels are launched there", "give all ranks as much to do"),
    "more data": (
        "all-to-alls give more data to it, as to a rank whose experts are in demand",
        "balance what its experts are sent",
    ),
    "compute": ("computing takes longer there", "give all ranks as much to do"),
    "host": ("the host launches later there", "look at the host's code, its CPU and other work on it"),
    "data loader": ("the data loader is slower there", "look at its disk, its network and its workers"),
    "garbage collection": (
        "Python collects garbage there while the others wait",
        "let all ranks collect at the same step: gc.disable(), and gc.collect() every so many steps",
    ),
    "synchronization": ("the host waits for the device where others do not", "remove that call"),
    "recompilation": (
        "torch.compile compiles there",
        "look at what changes on it alone (`kinetoscope graphs`)",
    ),
    "allocator": ("device memory is allocated there", "look at its shapes and its memory"),
    LINK: ("its transfers take longer than those of groups like it", "look at NVLink and network counters"),
}
# Where the detail is a part of that sentence; elsewhere it stands behind it in brackets.
WITH_DETAIL = {
    "slow kernel": "the kernel {} is slower there",
    "clocks": "{} there, as on a throttled device",
    "more work": "{} are launched there",
    LINK: "its transfers take {} as those of groups like it",
}


def seen(cause: str | None, detail: str) -> str:
    """A clause on what distinguishes the late rank; empty where the cause is unknown."""
    if cause not in WHY:
        return ""
    if not detail:
        return WHY[cause][0]
    return WITH_DETAIL[cause].format(detail) if cause in WITH_DETAIL else f"{WHY[cause][0]} ({detail})"


class RankVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``status``: even | straggler | link | turns | unknown. Of stragglers: the ranks (``listed``: as text),
    the worst of them (``rank``), their share of the waiting, and why they were late (null: unknown): slow
    kernel | clocks | more work | more data | compute | host | data loader | garbage collection |
    synchronization | recompilation | allocator; of a link (the cause too) the ranks of its groups. ``scope``:
    rank | ranks | host | stage | group. ``cost_us`` is how much longer that (of turns: the lateness of all)
    makes a step (or the recording, where ``steps`` is null), ``cost_share`` of the time after the first step;
    of a cause of ``TO_SHARE``, than if all ranks that do the same shared it.
    ``hosts`` and ``devices`` (each rank's; empty where ranks of one host give theirs the same number) are
    where they ran. ``why`` it is
    unknown, or even though ranks wait."""

    status: str
    rank: int | None = None
    share_of_waiting: float = 0.0
    cause: str | None = None
    detail: str = ""
    why: str = ""
    ranks: list[int] = []
    listed: str = ""
    scope: str = ""
    hosts: list[str] = []
    devices: list[int] = []
    stage: int | None = None
    cost_us: float | None = None
    cost_share: float | None = None
    path: str = ""  # the trace of the worst rank; ``peer_path``: of one like it
    peer_path: str = ""
    steps: int | None = None


class IdealRow(msgspec.Struct, frozen=True, kw_only=True):
    """The time between the first collective and the last: recorded, replayed (``error``: by which share that
    is longer), without stragglers, and without the lateness of one rank.

    Of a pipeline whose passes are known (``grain``: passes, else collectives) the time of ``steps``
    steps, and how many times as long they would take, without stragglers but for one stage's (``by_stage``:
    its ranks), one data-parallel worker's (``by_worker``: its ranks; of many those that lose most, of one
    none) or one sort of operation's (``by_operation``; host: what no operation explains). ``why`` they are
    not known.
    """

    recorded_us: float
    replayed_us: float
    error: float
    slowdown: float
    without: dict[int, float]
    grain: str = "collectives"
    steps: int | None = None
    by_stage: dict[str, float] = {}
    by_worker: dict[str, float] = {}
    by_operation: dict[str, float] = {}
    why: str = ""
