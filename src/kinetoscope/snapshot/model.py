"""A snapshot in memory: tables of what the allocator had of each device, and of what it did before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import polars as pl
from msgspec import Struct, field

from kinetoscope.snapshot.unpickler import ACTIONS as ACTIONS

ALLOC, FREE, FREED, SEGMENT, SEGMENT_FREE, MAP, UNMAP, SNAPSHOT, OOM = range(9)
STATES = ("active_allocated", "active_pending_free", "inactive")

SEGMENTS = {
    "device": pl.Int32,
    "segment": pl.Int32,  # its number; blocks name it
    "address": pl.Int64,
    "bytes": pl.Int64,
    "stream": pl.Int64,
    "pool": pl.Int32,  # of ``Snapshot.pools``
    "is_expandable": pl.Boolean,
    "stack": pl.Int32,
}
BLOCKS = {
    "device": pl.Int32,
    "segment": pl.Int32,
    "address": pl.Int64,
    "bytes": pl.Int64,  # of the block; what was requested is at most as much
    "requested": pl.Int64,
    "state": pl.Int8,  # of ``STATES``
    "stack": pl.Int32,
}
ENTRIES = {
    "device": pl.Int32,
    "action": pl.Int8,  # of ``ACTIONS``
    "address": pl.Int64,  # of an oom: what the driver had free
    "bytes": pl.Int64,
    "stream": pl.Int64,
    "time_us": pl.Int64,  # on the wall clock
    "stack": pl.Int32,
    "pool": pl.Int32,
    "context": pl.Int32,  # of ``Snapshot.contexts``
}


class StackFrame(NamedTuple):
    """A function on a Python stack, as torch writes it."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


class Annotation(NamedTuple):
    """Where a range that the program (or torch, as for an optimizer's step) named begins or ends."""

    device: int
    name: str
    time_us: int
    begins: bool


class Noted(NamedTuple):
    """An entry's notes: the program's ``metadata``, and what was ``compiling``; empty where nothing was."""

    metadata: str
    compiling: str


Stack = tuple[StackFrame, ...]  # the innermost first


# Identity: analyses remember their result per snapshot.
class Snapshot(Struct, frozen=True, eq=False, weakref=True):
    """The memory of torch's allocator on each device at one moment, and its history before that."""

    path: str
    bytes: int
    segments: pl.DataFrame
    blocks: pl.DataFrame
    entries: pl.DataFrame
    stacks: Sequence[Stack]  # what ``stack`` numbers; the first is empty: none was recorded, or no Python ran
    # what ``pool`` numbers: torch's ids; (0, 0) is the default one, others are of CUDA graphs and such
    pools: Sequence[tuple[int, int]]
    # of the allocator, as torch writes them
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unknown: int = 0  # entries that are none of those known
    annotations: Sequence[Annotation] = ()  # of the program's ranges, in order of time
    contexts: Sequence[Noted] = (Noted("", ""),)  # what ``context`` numbers; the first is empty
