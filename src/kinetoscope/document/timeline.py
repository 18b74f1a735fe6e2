"""Every event of a recording as packed columns: what a timeline draws. Times are whole nanoseconds."""

from __future__ import annotations

import msgspec


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one stream or thread: ``count`` rows from ``first`` on, by start, the longest first."""

    label: str
    kind: str  # ``stream``, ``annotation`` (drawn on a device, but no work) or ``thread``
    rank: int
    device: int | None  # null on a thread
    first: int
    count: int


class Name(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A name of events. ``kind`` is the trace's category, ``category`` that of device work or empty, and
    ``short`` what device work is called where no kernel rows say so."""

    name: str
    kind: str
    category: str
    short: str = ""


class Launched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a piece of device work was launched; what was not recorded has no key."""

    grid: str | None = None
    block: str | None = None
    registers: int | None = None
    shared_memory_bytes: int | None = None
    warps_per_sm: float | None = None
    occupancy_percent: float | None = None
    bytes: int | None = None
    collective: str | None = None


class PackedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of numbers of 0 or more, in ``planes`` of bytes: all lowest bytes, then all second ones."""

    name: str
    length: int
    planes: int
    deltas: bool  # each number is stored as its difference from the one before, d as 2d, or -d as 2d - 1
    data: bytes


class MarkedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event that evidence points at (its position in the file of a rank) stands in the columns."""

    rank: int
    event: int
    row: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    origin_ns: int  # on the clock of the traces; ``start`` counts from there
    lanes: list[Lane]
    names: list[Name]
    texts: list[str]
    launched: list[Launched]
    # of all events ``start``, ``duration``, ``name`` (of ``names``), ``shapes`` and ``stack`` (of ``texts``,
    # 0 for none), and where lines were noted ``line`` (``train.py(12): step``), ``modules`` (all around it,
    # ``GPT › Layer``) and ``before`` (the line in which time passed before it); of device work, in the order
    # of its rows, ``launch`` and ``forward`` (the rows of the call that launched it and of the forward op
    # that it is the backward of, plus 1, 0 for none), ``launched``, and what it belongs to (of ``texts``):
    # ``op``, ``module``, ``annotation``, ``step`` and ``graph``; of idle time ``idle_device`` (of
    # ``idle_devices``), ``idle_start``, ``idle_duration`` and ``idle_cause`` (of ``causes``). Texts that no
    # event has are no column. Two steps compared have ``aligned_start`` and ``aligned_duration``, once they
    # are aligned
    columns: list[PackedColumn]
    idle_devices: list[tuple[int, int]]
    causes: list[str]
    marks: list[MarkedEvent]
    left_out: str | None  # what is not among the events, in a sentence; null where all are
