"""Many recordings in order of time."""

from __future__ import annotations

import msgspec


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One recording. Where the step changed, ``change`` is by which share of the step before, with its 95 %
    interval; ``new_findings`` and ``counts_changed`` are against the recording before; ``lost``
    says what is missing of this one."""

    name: str
    created: str
    devices: list[str]
    basis: str | None
    step_us: float | None
    busy_us: float | None
    steps: int
    counts: dict[str, float | None]
    findings: list[str]
    new_findings: list[str]
    counts_changed: list[str]
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    lost: list[str] = []


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first."""

    schema: str = "kinetoscope.history/1"
    rows: list[HistoryRow]
    unread: list[str] = []
