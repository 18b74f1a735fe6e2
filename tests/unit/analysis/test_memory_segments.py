"""Where memory lay at the peak, and by whose calls: sums against what the allocator counted."""

from __future__ import annotations

import pickle
from itertools import groupby
from pathlib import Path

import pytest

from kinetoscope.analysis.memory.peak import devices
from kinetoscope.analysis.memory.segments import FREE, segments
from kinetoscope.analysis.memory.stacks import calls
from kinetoscope.cli import main
from kinetoscope.document.collect.memory import peaks
from kinetoscope.errors import InputError
from kinetoscope.snapshot.read import read
from kinetoscope.sources.run import load
from snapshots import MAIN, MIB, OF_LAYER, WHEN_US, Allocator, Training, dump, frames, snapshot


@pytest.mark.parametrize("ends", [False, True])
def test_segments_and_their_pieces_sum_to_what_was_reserved(tmp_path: Path, *, ends: bool):
    training = Training()
    if ends:  # the peak is the last moment: blocks are known as they are
        training.allocator.alloc(64 * MIB, frames(*MAIN))
    (found,) = devices(read(dump(tmp_path / "x.pickle", training.allocator)), None)
    laid = segments(found)
    assert sum(one.bytes for one in laid) == found.reserved
    assert all(sum(size for _, size in one.pieces) == one.bytes for one in laid)
    assert sum(one.allocations for one in laid) == len(found.at_peak)
    used = sum(size for one in laid for role, size in one.pieces if role != FREE)
    assert used == training.allocator.peaks["allocated"]


def test_a_failure_says_how_large_the_largest_hole_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    allocator = Allocator()
    first = [allocator.alloc(6 * MIB, frames(*OF_LAYER)) for _ in range(3)]  # of one segment of 20 MiB
    allocator.alloc(30 * MIB, frames(*OF_LAYER), stream=7)
    allocator.free(first[1])
    allocator.fail(8 * MIB, frames(*OF_LAYER))
    path = dump(tmp_path / "x.pickle", allocator)
    laid, *_ = segments(devices(read(path), None)[0])
    assert [size for role, size in laid.pieces if role == FREE] == [6 * MIB, 2 * MIB]
    assert (laid.free_bytes, laid.largest_hole_bytes) == (8 * MIB, 6 * MIB)
    assert main(["memory", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 segments of the driver; 8.39 MB free in them, the largest hole 6.29 MB where 8.39 MB" in shown


def test_calls_have_what_is_allocated_below_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    allocator = Allocator()
    for line, size in ((1, 4), (2, 3), (3, 1)):
        allocator.alloc(size * MIB, frames(f"/home/u/model.py:{line}:part", "/home/u/model.py:9:all", *MAIN))
    allocator.alloc(2 * MIB, frames(*MAIN))
    path = dump(tmp_path / "x.pickle", allocator)
    (found,) = devices(read(path), None)
    rows = [(one.depth, one.frames[0].split(":")[1], one.bytes // MIB) for one in calls(found, 0)]
    assert rows == [
        (0, "90 main", 10), (1, "9 all", 8), (2, "1 part", 4), (2, "2 part", 3), (2, "3 part", 1)
    ]  # fmt: skip
    assert [int(one.frames[0].split(":")[1].split()[0]) for one in calls(found, 0.25)] == [90, 9, 1, 2]
    assert main(["memory", str(path), "--stacks"]) == 0
    assert "· · part model.py:2" in capsys.readouterr().out


def test_ranges_that_the_program_named_are_those_around_the_moment(tmp_path: Path):
    allocator = Allocator()
    allocator.alloc(MIB)
    allocator.fail(8 * MIB)
    made = snapshot(allocator)
    times = [("epoch", "START", 0), ("load", "START", 1), ("load", "END", 2), ("step", "START", 3)]
    times.append(("epoch", "END", 1_000_000))
    made["external_annotations"] = [
        {"name": name, "stage": stage, "device": 0, "time_us": WHEN_US + at} for name, stage, at in times
    ]
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(made))
    (found,) = devices(read(path), None)
    assert found.annotations == ["epoch", "step"]
    made["external_annotations"] = [{"name": ["epoch"], "stage": "START", "time_us": 0}]
    path.write_bytes(pickle.dumps(made))
    with pytest.raises(InputError):
        read(path)


def test_what_torch_notes_of_an_allocation_is_kept(tmp_path: Path):
    """What the program set, what was compiling, and the private pool, as (0, 7) of a CUDA graph."""
    allocator = Allocator()
    allocator.alloc(4 * MIB, frames(*MAIN))
    allocator.metadata = "epoch 3"
    allocator.alloc(3 * MIB, frames(*MAIN), pool=(0, 7))
    allocator.metadata, allocator.compiled = "", "0/1"
    allocator.alloc(2 * MIB, frames(*MAIN))
    (peak,) = peaks(load(dump(tmp_path / "a.pickle", allocator))).peaks
    said = {one.bytes // MIB: (one.user_metadata, one.compile_context, one.pool) for one in peak.blocks}
    assert said == {4: (None, None, None), 3: ("epoch 3", None, (0, 7)), 2: (None, "0/1", None)}


@pytest.mark.parametrize("is_said", [True, False], ids=["said", "by address"])
def test_what_is_idle_in_private_pools_is_counted(tmp_path: Path, *, is_said: bool):
    """A graph's pool keeps 20 MiB of the driver's for its 3 and 2 MiB, whoever else might need them; older
    torch says the pool of segments alone."""
    allocator = Allocator()
    allocator.alloc(4 * MIB, frames(*MAIN))
    first = allocator.alloc(3 * MIB, frames(*MAIN), pool=(0, 7))
    allocator.alloc(2 * MIB, frames(*MAIN), pool=(0, 7))
    allocator.free(first)
    if not is_said:
        for entry in allocator.entries:
            del entry["pool_id"]
    (peak,) = peaks(load(dump(tmp_path / "a.pickle", allocator))).peaks
    idle = [one.idle_in_pools_bytes // MIB for one in peak.over_time]
    assert [amount for amount, _ in groupby(idle)] == [0, 20, 17, 15, 18]
    assert [one.bytes // MIB for one in peak.parts if one.part == "graph pool"] == [5]


def test_another_moment_than_the_peak_is_shown_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    allocator = Allocator()
    allocator.begin()
    first = allocator.alloc(30 * MIB, frames(*MAIN))
    allocator.free(allocator.alloc(50 * MIB, frames(*MAIN)))
    allocator.free(first)
    path = dump(tmp_path / "x.pickle", allocator)
    (found,) = devices(read(path), None)
    times = found.curve.table["time_us"]
    for place, time_us in enumerate(times[1:]):
        chosen = found.at(time_us - times[0])
        counted = allocator.counted[place]
        assert (chosen.requested, chosen.reserved) == (counted["requested"], counted["reserved"])
        assert sum(one.free_bytes for one in segments(chosen)) == chosen.reserved - chosen.requested
    assert main(["memory", str(path), "--at", "0.075"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU 0: 0 B allocated of 83.9 MB reserved, at the chosen moment" in shown
    assert "2 segments of the driver; 83.9 MB free in them, the largest hole 52.4 MB" in shown
