"""Lifetimes and sums of allocations, against an allocator that counts for itself."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.memory.lifetimes import alive, allocations, curve
from kinetoscope.snapshot.model import Snapshot
from kinetoscope.snapshot.read import read
from snapshots import Allocator, dump, frames

Script = list[tuple[str, int]]
SCRIPTS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.sampled_from([1, 512, 700_000, 3 << 20, 64 << 20])),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


def played(script: Script, quiet: int) -> tuple[Snapshot, Allocator, list[dict[str, int]]]:
    """The snapshot after a script whose first calls no history was kept of, the allocator, and its counts
    after each of the others."""
    allocator, live, counts = Allocator(), list[int](), list[dict[str, int]]()
    allocator.recording = quiet == 0
    for number, (call, value) in enumerate(script):
        if number == quiet:
            allocator.begin()
        if call == "alloc":
            live.append(allocator.alloc(value, frames(f"a.py:{value}:f")))
        elif call == "free" and live:
            allocator.free(live.pop(value % len(live)))
        elif call == "empty":
            allocator.empty_cache()
        if number >= quiet:
            counts.append(allocator.counts())
    with TemporaryDirectory() as folder:
        return read(dump(Path(folder) / "x.pickle", allocator)), allocator, counts


@settings(deadline=None, max_examples=30)
@given(SCRIPTS, st.integers(0, 20))
@example([("alloc", 1), ("free", 0)], 1)  # nothing is held any more, but was when the history began
def test_what_was_held_and_reserved_is_what_the_allocator_counted(script: Script, quiet: int):
    snapshot, allocator, counts = played(script, quiet)
    found = curve(snapshot, 0)
    if counts:
        assert found.at(1 << 40) == (counts[-1]["requested"], counts[-1]["reserved"])
    rows = found.table.filter(pl.col("place") >= 0).select("held", "reserved").rows()
    assert rows == [(entry["requested"], entry["reserved"]) for entry in allocator.counted]
    known = allocations(snapshot)
    assert known["start"].to_list() == known["start"].sort(nulls_last=False).to_list()  # owners rely on it
    assert (
        known["bytes"].sum()
        == sum(
            e["size"]  # type: ignore[misc]
            for e in allocator.entries
            if e["action"] == "alloc"
        )
        + known.filter(pl.col("start").is_null())["bytes"].sum()
    )
    for place in (-1, *found.table["place"].sample(5, with_replacement=True, seed=0)):
        assert alive(known, place)["bytes"].sum() == found.at(place)[0]


def test_what_was_there_before_the_history_keeps_what_is_known_of_it():
    allocator = Allocator()
    with_stack = allocator.alloc(1000, frames("a.py:1:early"))
    allocator.recording = False
    without = allocator.alloc(2000, frames("a.py:2:late"))
    kept = allocator.alloc(3000)
    allocator.begin()
    allocator.free(with_stack)
    allocator.free(without)
    allocator.free(allocator.alloc(4000, frames("a.py:3:tells")))  # that releases have no stacks of their own
    with TemporaryDirectory() as folder:
        snapshot = read(dump(Path(folder) / "x.pickle", allocator))
    rows = allocations(snapshot).filter(pl.col("start").is_null())
    rows = rows.select("address", "bytes", "start", "end", "stack").sort("address").rows()
    assert [
        (address, size, start, end, snapshot.stacks[stack]) for address, size, start, end, stack in rows
    ] == [
        (with_stack, 1000, None, 1, (("early", "a.py", 1),)),
        (without, 2000, None, 3, ()),
        (kept, 3000, None, None, ()),
    ]
