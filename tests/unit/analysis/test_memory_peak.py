"""The peak of a training loop, split: sums against those that the allocator kept itself."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from kinetoscope.analysis.memory.growth import growth
from kinetoscope.analysis.memory.headroom import fits
from kinetoscope.analysis.memory.peak import DeviceHistory, devices, holders, over_time, split
from kinetoscope.recording.memory import DeviceMemory, Held, HeldTensor
from kinetoscope.snapshot.read import read
from snapshots import MIB, Allocator, Training, dump, frames


def history(training: Training, folder: Path, **said: object) -> tuple[DeviceHistory, Held]:
    tensors = tuple(HeldTensor(**one) for one in training.tensors)  # type: ignore[arg-type]
    held = Held(boundaries_ns=tuple(training.boundaries), tensors=tensors, **said)  # type: ignore[arg-type]
    (found,) = devices(read(dump(folder / "x.pickle", training.allocator)), held)
    return found, held


@pytest.mark.parametrize("leaks", [0, 700_000])
def test_the_parts_of_the_peak_sum_to_what_was_reserved(tmp_path: Path, leaks: int):
    training = Training(leaks=leaks)
    found, _ = history(training, tmp_path)
    peaks = training.allocator.peaks
    assert (found.requested, found.reserved) == (peaks["requested"], peaks["reserved"])
    parts = dict(split(found).select("part", "bytes").iter_rows())
    assert sum(parts.values()) == found.reserved
    assert parts["parameter"] == 4 * MIB + 300_000
    assert parts["optimizer state"] == 4 * MIB + 300_000
    assert parts["rounding"] == sum(-size % 512 for size in found.at_peak["bytes"])
    table = holders(found)
    assert table["bytes"].sum() == found.requested
    assert table["allocations"].sum() == len(found.at_peak)
    assert set(table.filter(pl.col("role") == "parameter")["owner"]) == {"m.0", "m.1"}


def test_roles_over_time_sum_to_what_was_held(tmp_path: Path):
    found, _ = history(Training(), tmp_path)
    every = over_time(found, 1 << 20)
    roles = [name for name in every.columns if name not in ("time_us", "reserved")]
    held = found.curve.table["held"].to_list()[1:]  # before its first entry, which is of the same time
    assert every.select(pl.sum_horizontal(roles)).to_series().to_list() == held
    few = over_time(found, 10)
    assert len(few) <= 2 * 10
    assert few.select(pl.sum_horizontal(roles)).max().item() == found.requested


def test_what_is_held_while_the_host_waits_is_no_peak_from_before(tmp_path: Path):
    allocator = Allocator()
    allocator.begin()
    kept = allocator.alloc(MIB)
    allocator.free(allocator.alloc(50 * MIB))
    allocator.now += 100_000
    allocator.free(kept)
    (found,) = devices(read(dump(tmp_path / "x.pickle", allocator)), None)
    shown = over_time(found, 100)
    waits = shown.with_columns(pl.col("time_us").diff().shift(-1).alias("us")).filter(pl.col("us") > 1000)
    assert waits["temporary"].to_list() == [MIB]
    assert shown["temporary"].max() == 51 * MIB


def test_what_is_kept_in_every_step_grows_and_nothing_else_does(tmp_path: Path):
    found, held = history(Training(), tmp_path)
    assert growth(found, held.boundaries_ns).is_empty()
    found, held = history(Training(leaks=700_000), tmp_path)
    (row,) = growth(found, held.boundaries_ns).iter_rows(named=True)
    assert (row["line"], row["bytes_per_step"], row["grows"]) == ("train.py:90", 700_000, "allocations")


def test_memory_that_holds_nothing_is_told_from_holes(tmp_path: Path):
    allocator = Allocator()
    big = allocator.alloc(64 * MIB, frames("a.py:1:f"))
    first, second = allocator.alloc(6 * MIB), allocator.alloc(6 * MIB)
    allocator.begin()
    allocator.free(big)
    allocator.free(first)
    kept = allocator.alloc(100, frames("a.py:2:<module>"))
    path = dump(tmp_path / "x.pickle", allocator)
    (found,) = devices(read(path), None)
    assert found.moment == "history"  # before it began, when most was held
    assert split(found)["bytes"].sum() == found.reserved == 64 * MIB + 20 * MIB
    (found,) = devices(read(path), Held(failed_bytes=1 << 40))
    assert found.moment == "out of memory"
    assert [second, kept] == sorted(found.at_peak["address"])
    assert dict(split(found).select("part", "bytes").iter_rows()) == {
        "before": 6 * MIB,
        "cache": 100,
        "rounding": 412,
        "fragmentation": 14 * MIB + 2 * MIB - 512,
        "cached": 64 * MIB,
    }


def test_how_much_fits_is_what_grows_into_what_is_left(tmp_path: Path):
    counters = DeviceMemory(device=0, reserved_bytes=1 << 30, free_bytes=100 * MIB, total_bytes=2 << 30)
    found, _ = history(Training(), tmp_path, devices=(counters,))
    room = fits(found)
    assert room is not None
    parts = dict(split(found).select("part", "bytes").iter_rows())
    assert room.fixed_bytes + room.scaling_bytes == found.requested
    assert room.room_bytes == (1 << 30) + 100 * MIB
    assert room.low <= room.high == (room.room_bytes - room.fixed_bytes) / room.scaling_bytes
    assert room.scaling_bytes >= parts["activation"] + parts["input"]


def test_another_moment_than_the_recorded_peak_may_limit_the_batch(tmp_path: Path):
    """The optimizer's step makes the peak, at which little of the batch is left."""
    counters = DeviceMemory(device=0, reserved_bytes=300, free_bytes=700, total_bytes=1000)
    training, _ = history(Training(), tmp_path)
    allocations = [("parameter", None, None, 100), ("activation", 1, 3, 40), ("temporary", 5, 7, 150)]
    allocations.append(("input", 1, None, 1))
    columns = ["role", "start", "end", "bytes"]
    known = pl.DataFrame(allocations, schema=columns, orient="row").with_columns(
        optimizer=pl.col("start") == 5
    )
    table = pl.DataFrame(
        {"place": [-1, 1, 3, 5, 7], "held": [100, 141, 101, 251, 101], "reserved": [300] * 5}
    )
    curve = replace(training.curve, table=table)
    found = replace(training, known=known, curve=curve, place=5, span=(-1, 7), counters=counters)
    room = fits(found)
    assert room is not None
    assert (room.scaling_bytes, room.fixed_bytes) == (41, 100)
    assert room.high == pytest.approx(900 / 41)


def test_a_batch_fits_into_what_there_was_when_an_allocation_failed(tmp_path: Path):
    counters = DeviceMemory(device=0, peak_reserved_bytes=40 * MIB, free_bytes=1 << 30, total_bytes=2 << 30)
    training = Training()
    found, _ = history(training, tmp_path, devices=(counters,), failed_bytes=8 * MIB)
    room = fits(found, found)
    assert room is not None
    assert room.room_bytes == 40 * MIB
    # Of the step that failed an earlier moment needs more than the last, with what could not be had.
    assert room.fixed_bytes + room.scaling_bytes == training.allocator.peaks["requested"]
    assert training.allocator.peaks["requested"] > found.requested + 8 * MIB
