"""The recorded steps replayed: what is critical in them, and what they would take if something changed."""

from __future__ import annotations

import msgspec


class PausedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Time that passed in a line of the program (``train.py:12 step``)."""

    line: str
    us: float


class PathRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the critical path: ``events`` are the first of the ``count`` that it is made of. Of the time
    between ops, ``lines`` are those of the program in which most of it passed, none where they were not
    noted; null for other parts."""

    text: str
    us: float
    events: list[int]
    count: int
    lines: list[PausedLine] | None = None


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of the rank whose step takes longest; where ranks share collectives, of the job, seen from
    there.

    ``step_us`` is the step replayed, of the program as it runs where that was timed, and ``critical_path``
    sums to it; ``recorded_us`` the step (or the whole recording) as recorded, ``error`` by which share of it
    its replay is longer, ``unexplained`` which share of the step are delays without a known cause.
    ``pace`` is what host time was multiplied by to get from the recorded step to the program as it runs;
    ``joint_saving_us`` is what all findings save together, of a step of ``savings_of_us``.
    """

    rank: int
    step_us: float
    recorded_us: float
    error: float
    unexplained: float
    pace: float
    critical_path: list[PathRow]
    joint_saving_us: float | None = None
    savings_of_us: float | None = None


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One requested change, how many events it concerns, and what it would save alone."""

    text: str
    events: int
    saving_us: float


class WhatIfRow(msgspec.Struct, frozen=True, kw_only=True):
    """The replay as recorded, and after all changes together; ``after`` is the critical path then."""

    replay: ReplayRow
    unit: str
    changes: list[ChangeRow]
    after_us: float
    saving_us: float
    after: list[PathRow]
