"""What a snapshot tells that nobody described: failures, blocks larger than what was asked for, stacks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from kinetoscope import cli
from kinetoscope.analysis.memory.headroom import fits, lacking
from kinetoscope.analysis.memory.lifetimes import allocations
from kinetoscope.analysis.memory.peak import devices, owner, split
from kinetoscope.document.collect.memory import listing
from kinetoscope.snapshot.read import read
from kinetoscope.sources.run import load
from snapshots import MAIN, MIB, OF_LAYER, OF_OPTIMIZER, SITE, Allocator, Frames, dump, frames

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200_memory"
LINE = frames("train.py:7:forward")
BUILT = (f"{SITE}nn/modules/module.py:9:_apply", *MAIN)


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


@pytest.mark.parametrize(("later", "is_the_end"), [(0, True), (512, True), (80 * MIB, False)])
def test_the_allocation_that_failed_is_said(tmp_path: Path, later: int, *, is_the_end: bool) -> None:
    """What a program allocates as it ends is little, as a barrier of its ranks."""
    allocator = Allocator()
    kept = allocator.alloc(8 * MIB, LINE)
    allocator.fail(64 * MIB, LINE)
    allocator.free(kept)
    if later:
        allocator.alloc(later, LINE)
    found = devices(read(dump(tmp_path / "oom.pickle", allocator)), None)[0]
    assert found.failed_bytes == (64 * MIB if is_the_end else 0)
    assert (found.moment == "out of memory") is is_the_end
    assert found.requested == (8 if is_the_end else 80) * MIB
    assert found.free_bytes == (12345 if is_the_end else None)


LAYER = frames(*OF_LAYER)


@pytest.mark.parametrize(
    ("at", "grows"), [(LAYER, True), (frames(*OF_OPTIMIZER), False), (frames(*BUILT), False)]
)
def test_a_batch_fits_into_what_a_bare_snapshot_says_there_was(tmp_path: Path, at: Frames, grows: bool):
    """Of all moments of the step that failed; what was free is no room where a limit forbade to take it."""
    allocator = Allocator()
    allocator.begin()
    allocator.alloc(10 * MIB, frames(*BUILT))
    for _ in range(2):
        saved = [allocator.alloc(20 * MIB, LAYER) for _ in range(3)]
        for one in saved:
            allocator.free(allocator.alloc(MIB))
            allocator.free(one)
    for _ in range(3):
        allocator.alloc(40 * MIB, LAYER)
    allocator.fail(30 * MIB, at)
    (found,) = devices(read(dump(tmp_path / "oom.pickle", allocator)), None)
    room = fits(found, found)
    assert room is not None
    assert room.room_bytes == found.reserved + 12345
    assert room.scaling_bytes == (120 + 30 * grows) * MIB
    assert room.fixed_bytes == (10 + 30 * (not grows)) * MIB
    assert room.low < room.high <= 1
    limited = fits(replace(found, free_bytes=1 << 40), replace(found, free_bytes=1 << 40))
    assert limited is not None
    assert limited.room_bytes == found.reserved
    assert lacking(found) == 30 * MIB - 12345
    assert lacking(replace(found, free_bytes=1 << 40)) == 30 * MIB
    assert lacking(replace(found, failed_bytes=0)) is None


def test_what_frees_less_than_the_failed_allocation_lacked_is_not_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2.62 GB were requested where the allocator once had 0.7 GB more than then: 1.9 GB were lacking."""
    path = FIXTURES / "full-failed.pickle.gz"
    frees = listing(load(path)).frees
    assert [(row.saving_bytes > 1.9e9, row.saving_is_enough) for row in frees] == [
        (True, True), (True, True), (False, False),
    ]  # fmt: skip
    assert cli.main(["findings", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GB at the peak: enough for the allocation that failed, if in one piece" in shown
    assert "1.80 GB at the peak: not enough alone for the allocation that failed" in shown


def test_what_is_younger_than_a_step_where_the_history_ends_is_not_kept(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.begin()
    roles: list[str] = []
    for number in range(4):
        saved = [allocator.alloc(20 * MIB, LAYER) for _ in range(2)]
        allocator.alloc(MIB, frames("/home/u/train.py:55:log", *MAIN))  # a leak
        roles += ["activation"] * 2 + ["kept" if number < 2 else "activation"]
        passing = allocator.alloc(MIB)
        roles += ["temporary"]
        if number == 3:  # the history ends in the backward pass
            break
        for one in (*saved, passing):
            allocator.free(one)
    known = devices(read(dump(tmp_path / "x.pickle", allocator)), None)[0].known.sort("start")
    roles[-1] = "gradient"  # it may be: nothing says which sizes parameters have
    assert known["role"].to_list() == roles


def test_what_a_pass_that_failed_has_made_is_a_gradient_only_where_a_parameter_is_as_large(tmp_path: Path):
    allocator = Allocator()
    allocator.begin()
    allocator.alloc(10 * MIB, frames(*BUILT))
    allocator.alloc(20 * MIB, LAYER)
    allocator.alloc(80 * MIB)
    allocator.alloc(10 * MIB)
    allocator.fail(20 * MIB)
    known = devices(read(dump(tmp_path / "x.pickle", allocator)), None)[0].known.sort("start")
    assert known["role"].to_list() == ["parameter", "activation", "temporary", "gradient"]


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


def test_no_line_is_said_of_older_allocations_where_nothing_tells_whose_stacks_releases_have(tmp_path: Path):
    allocator = Allocator()
    older = allocator.alloc(4 * MIB, LINE)
    allocator.begin()
    allocator.free(older)
    allocator.alloc(MIB, LINE)
    (found,) = devices(read(dump(tmp_path / "ring.pickle", allocator)), None)
    older_rows = found.known.filter(pl.col("bytes") == 4 * MIB)
    assert older_rows.select("line", owner=owner()).rows() == [("", "allocated before the history")]
