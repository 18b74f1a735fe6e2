"""Memory at the peak by whole stacks: a tree of calls, as a flame graph draws it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from msgspec import Struct, field

from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.analysis.memory.rows import CallsRow
from kinetoscope.snapshot.model import StackFrame


class _Node(Struct):
    bytes: int = 0
    allocations: int = 0
    below: dict[StackFrame, _Node] = field(default_factory=dict["StackFrame", "_Node"])


def calls(history: DeviceHistory, least: float) -> list[CallsRow]:
    """The tree of all calls that have the share ``least`` of the requested bytes, depth first, most first."""
    root = _Node()
    here = history.at_peak.group_by("stack").agg(pl.col("bytes").sum(), pl.len()).sort("stack")
    for number, size, count in here.iter_rows():
        node = root
        for frame in reversed(history.snapshot.stacks[number]):
            node = node.below.setdefault(frame, _Node())
            node.bytes += size
            node.allocations += count
    return [*_listed(root, 0, least * history.requested)]


def _listed(above: _Node, depth: int, least: float) -> Iterator[CallsRow]:
    for frame, node in sorted(above.below.items(), key=lambda item: -item[1].bytes):
        if node.bytes < least:
            continue
        frames, last = [frame], node
        while len(last.below) == 1:
            ((inner, below),) = last.below.items()
            if below.bytes != last.bytes:
                break
            frames.append(inner)
            last = below
        lines = [*map(str, reversed(frames))]
        yield CallsRow(depth=depth, frames=lines, bytes=node.bytes, allocations=node.allocations)
        yield from _listed(last, depth + 1, least)
