"""Interval arithmetic against sets of integer instants, the slow definition of the same thing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analysis.time import intervals

interval = st.tuples(st.integers(0, 2), st.integers(-5, 40), st.integers(-3, 12))
intervals_of_keys = st.lists(interval, max_size=25)


def table(rows: Iterable[tuple[int, int, int]]) -> pl.DataFrame:
    rows = list(rows)
    return pl.DataFrame(
        {
            "device": [r[0] for r in rows],
            "start_ns": [r[1] for r in rows],
            "end_ns": [r[1] + r[2] for r in rows],
            "noise": [str(i) for i, _ in enumerate(rows)],
        },
        schema={"device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "noise": pl.String},
    )


def instants(frame: pl.DataFrame) -> set[tuple[int, int]]:
    return {
        (device, t)
        for device, start, end in frame.select("device", "start_ns", "end_ns").iter_rows()
        for t in range(start, end)
    }


def assert_merged(frame: pl.DataFrame) -> None:
    rows = frame.select("device", "start_ns", "end_ns").rows()
    assert rows == sorted(rows)
    assert all(start < end for _, start, end in rows)
    for (device, _, end), (next_device, start, _) in itertools.pairwise(rows):
        assert device != next_device or end < start


@given(intervals_of_keys)
def test_union_is_the_set_of_covered_instants(rows: list[tuple[int, int, int]]) -> None:
    merged = intervals.union(table(rows), ["device"])
    assert instants(merged) == instants(table(rows))
    assert_merged(merged)


@given(intervals_of_keys, intervals_of_keys)
def test_intersect_and_subtract_are_those_of_sets(
    left: list[tuple[int, int, int]], right: list[tuple[int, int, int]]
) -> None:
    both = intervals.intersect(table(left), table(right), ["device"])
    only = intervals.subtract(table(left), table(right), ["device"])
    assert instants(both) == instants(table(left)) & instants(table(right))
    assert instants(only) == instants(table(left)) - instants(table(right))
    assert_merged(both)
    assert_merged(only)


@given(intervals_of_keys)
def test_length_counts_instants(rows: list[tuple[int, int, int]]) -> None:
    merged = intervals.union(table(rows), ["device"])
    assert intervals.total(merged) == len(instants(table(rows)))
    for device, length in intervals.length(merged, ["device"]).iter_rows():
        assert length == sum(1 for d, _ in instants(table(rows)) if d == device)


@given(intervals_of_keys, st.integers(-5, 45), st.integers(-5, 45))
def test_clip_keeps_what_is_inside(rows: list[tuple[int, int, int]], start: int, end: int) -> None:
    clipped = intervals.clip(table(rows), start, end)
    assert instants(clipped) == {(d, t) for d, t in instants(table(rows)) if start <= t < end}
    assert set(clipped.columns) == set(table(rows).columns)


@given(intervals_of_keys, st.lists(st.tuples(st.integers(0, 2), st.integers(-10, 60)), max_size=10))
def test_covered_until_counts_the_instants_before(
    rows: list[tuple[int, int, int]], instants_: list[tuple[int, int]]
) -> None:
    merged = intervals.union(table(rows), ["device"])
    asked = pl.DataFrame(instants_, schema={"device": pl.Int32, "at": pl.Int64}, orient="row")
    covered = intervals.covered_until(merged, asked, ["device"])
    assert covered.to_list() == [
        sum(1 for d, t in instants(table(rows)) if d == device and t < at) for device, at in instants_
    ]


def test_without_keys_everything_is_one_set() -> None:
    frame = table([(0, 0, 10), (1, 5, 10), (2, 30, 1)])
    assert intervals.union(frame).rows() == [(0, 15), (30, 31)]
    assert intervals.subtract(frame, table([(0, 2, 3)])).rows() == [(0, 2), (5, 15), (30, 31)]
    asked = pl.DataFrame({"at": [40, 8]})
    assert intervals.covered_until(intervals.union(frame), asked).to_list() == [16, 8]


def test_a_key_with_one_value_keeps_nothing_apart() -> None:
    table = pl.DataFrame({"rank": [0, 0], "device": [1, 2], "start_ns": [5, 0], "end_ns": [9, 6]})
    assert intervals.apart(table, ["rank", "device"]) == ["device"]
    one = table.with_columns(device=pl.lit(1))
    assert intervals.union(one, ["rank", "device"]).rows() == [(0, 1, 0, 9)]
    unknown = table.with_columns(device=pl.Series([1, None]))
    assert intervals.apart(unknown, ["device"]) == ["device"]


@pytest.mark.parametrize("function", [intervals.intersect, intervals.subtract])
def test_operations_on_no_intervals_give_none(function: object) -> None:
    assert function(table([]), table([(0, 0, 5)]), ["device"]).is_empty()  # type: ignore[operator]
