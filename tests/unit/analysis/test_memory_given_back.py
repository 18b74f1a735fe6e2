"""What was given back to the driver, by an allocator that counts what it gives back, and why."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kinetoscope.analysis.memory.growth import GivenBack, given_back
from kinetoscope.analysis.memory.peak import devices
from kinetoscope.recording.memory import DeviceMemory, Held
from kinetoscope.snapshot.read import read
from snapshots import MAIN, MIB, SITE, Allocator, dump, frames

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200_memory"
CAPTURE = "/home/u/kinetoscope/src/kinetoscope/capture/torch_private.py:229:empty_cache"
EMPTIES = (CAPTURE, f"{SITE}cuda/memory.py:280:empty_cache", "/home/u/train.py:55:step", *MAIN)
LAYER, LOSS = ("/home/u/model.py:7:forward", *MAIN), ("/home/u/train.py:60:loss", *MAIN)


def found(folder: Path, allocator: Allocator, boundaries: list[int], counts: bool = True) -> list[GivenBack]:
    held = Held(
        boundaries_ns=tuple(boundaries),
        devices=(DeviceMemory(device=0, retries=allocator.retries),) if counts else (),
    )
    (history,) = devices(read(dump(folder / "x.pickle", allocator)), held)
    return given_back(history, held.boundaries_ns)


def loop(allocator: Allocator, sizes: list[int], calls: tuple[str, ...] | None = None, empties: bool = False):
    """A step a size: two tensors of one layer, given back, and all that is cached likewise, or never."""
    boundaries: list[int] = []
    for size in sizes:
        boundaries.append((allocator.now + 1) * 1000)
        for one in [allocator.alloc(size, frames(*line)) for line in (LAYER, LOSS)]:
            allocator.free(one)
        if empties:
            allocator.empty_cache(frames(*calls) if calls else None)
    return [*boundaries, (allocator.now + 1) * 1000]


@pytest.mark.parametrize("calls", [EMPTIES, None], ids=["with its stack", "without"])
def test_an_emptied_cache_is_told_from_want_of_room(tmp_path: Path, calls: tuple[str, ...] | None):
    allocator = Allocator()
    times = found(tmp_path, allocator, loop(allocator, [30 * MIB] * 4, calls, empties=True))
    line = "train.py:55" if calls else ""
    assert [(time.cause, time.step, time.line) for time in times] == [
        ("empty_cache", step, line) for step in (1, 2, 3, 4)
    ]
    assert [(time.segments, time.bytes) for time in times] == [(2, 60 * MIB)] * 4
    assert [time.again_bytes for time in times] == [60 * MIB] * 3 + [0]


def test_an_allocation_that_had_no_room_is_named(tmp_path: Path):
    allocator = Allocator(room=100 * MIB)
    sizes = [20 * MIB, 36 * MIB, 36 * MIB, 40 * MIB]
    times = found(tmp_path, allocator, loop(allocator, sizes))
    assert allocator.retries == len(times) == 2
    assert [(time.cause, time.step, time.line) for time in times] == [
        ("room", 2, "train.py:60"),
        ("room", 4, "model.py:7"),
    ]
    assert [time.bytes for time in times] == [40 * MIB, 72 * MIB]


def test_what_one_line_takes_again_is_a_retry_only_where_the_allocator_counts_some(tmp_path: Path):
    """One segment, of the stack that asks next: as it is written of both."""
    allocator = Allocator()
    boundaries = [(allocator.now + 1) * 1000]
    for _ in range(3):
        allocator.free(allocator.alloc(30 * MIB, frames(*LAYER)))
        allocator.empty_cache()
        boundaries.append((allocator.now + 1) * 1000)
    assert {time.cause for time in found(tmp_path, allocator, boundaries)} == {"empty_cache"}
    causes = [time.cause for time in found(tmp_path, allocator, boundaries, counts=False)]
    assert causes == ["room", "room", "empty_cache"]


def test_a_device_that_ran_full_gave_back_what_torch_wrote(tmp_path: Path):
    path = tmp_path / "x.pickle"
    path.write_bytes(gzip.decompress((FIXTURES / "full-failed.pickle.gz").read_bytes()))
    (history,) = devices(read(path), Held(failed_bytes=1))
    times = given_back(history, ())
    gave = history.snapshot.entries.filter(history.snapshot.entries["action"] == 4)
    assert sum(time.segments for time in times) == len(gave) > 0
    assert sum(time.bytes for time in times) == gave["bytes"].sum()
    assert {time.cause for time in times} == {"room"}
