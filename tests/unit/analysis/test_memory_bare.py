"""What a snapshot tells that nobody described: failures, blocks larger than what was asked for, stacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.analysis.memory.lifetimes import allocations
from kinetoscope.analysis.memory.peak import devices, split
from kinetoscope.snapshot.read import read
from snapshots import MIB, Allocator, dump, frames

LINE = frames("train.py:7:forward")


def test_what_is_too_little_to_split_off_is_the_blocks_own(tmp_path: Path) -> None:
    allocator = Allocator()
    first = allocator.alloc(19 * MIB + 300_000)
    second = allocator.alloc(30 * MIB + 700_000)
    peak = dict(allocator.peaks)
    allocator.free(first)
    allocator.free(second)
    allocator.alloc(100)
    found = devices(read(dump(tmp_path / "one.pickle", allocator)), None)[0]
    assert found.requested == peak["requested"]
    parts = dict(split(found).select("part", "bytes").iter_rows())
    assert parts["rounding"] == peak["allocated"] - peak["requested"]
    assert sum(parts.values()) == found.reserved


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_allocation_that_failed_is_said(tmp_path: Path, *, goes_on: bool) -> None:
    allocator = Allocator()
    kept = allocator.alloc(8 * MIB, LINE)
    allocator.fail(64 * MIB, LINE)
    if goes_on:
        allocator.free(kept)
        allocator.alloc(2 * MIB, LINE)
    found = devices(read(dump(tmp_path / "oom.pickle", allocator)), None)[0]
    assert found.failed_bytes == (0 if goes_on else 64 * MIB)
    assert (found.moment == "out of memory") is not goes_on
    assert found.requested == 8 * MIB


def test_the_line_that_releases_is_not_the_line_that_asked(tmp_path: Path) -> None:
    allocator = Allocator()
    older = allocator.alloc(4 * MIB, LINE)
    allocator.begin()
    newer = allocator.alloc(3 * MIB, LINE)
    for address in (older, newer):
        allocator.free(address)
    for entry in allocator.entries:
        if entry["action"] in ("free_requested", "free_completed"):
            entry["frames"] = frames("train.py:99:zero_grad")
    found = allocations(read(dump(tmp_path / "ring.pickle", allocator)))
    stacks = dict(found.select("bytes", "stack").iter_rows())
    assert stacks[4 * MIB] == 0
    assert stacks[3 * MIB] != 0
