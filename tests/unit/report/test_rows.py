"""Tables become rows: every field from its column, nanoseconds as microseconds, nothing silently missing."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.document.collect.rows import rows, rows_by, rows_within


class Part(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    device_time_us: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    launches: int
    start_us: float
    host_us_per_launch: float | None
    parts: list[Part] = []


TABLE = pl.DataFrame(
    {
        "name": pl.Series(["a", "b", "a"], dtype=pl.Categorical),
        "works": [1, 2, 3],
        "start_ns": [1, 1_500, 4_368_634_437_039_676],
        "host_ns_per_launch": [2.5, None, 7.0],
        "not shown": [0, 0, 0],
        "parts": [[{"name": "x", "device_time_ns": 10}] * count for count in (2, 0, 1)],
    }
)
RENAMED = {"launches": "works"}


def test_each_field_takes_its_column() -> None:
    made = rows(TABLE, Row, RENAMED, parts=rows_within(TABLE["parts"], Part))
    part = Part(name="x", device_time_us=0.01)
    assert made == [
        Row(name="a", launches=1, start_us=0.001, host_us_per_launch=0.0025, parts=[part, part]),
        Row(name="b", launches=2, start_us=1.5, host_us_per_launch=None),
        Row(name="a", launches=3, start_us=4368634437039.676, host_us_per_launch=0.007, parts=[part]),
    ]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_microseconds_are_as_near_to_the_nanoseconds_as_a_float_can_be(times_ns: list[int | None]) -> None:
    """Also those since 1970, which a float of nanoseconds cannot tell apart."""

    class Time(msgspec.Struct, frozen=True, kw_only=True):
        at_us: float | None

    table = pl.DataFrame({"at_ns": pl.Series(times_ns, dtype=pl.Int64)})
    assert [row.at_us for row in rows(table, Time)] == [None if ns is None else ns / 1000 for ns in times_ns]


@pytest.mark.parametrize("column", ["name", "start_ns", "host_ns_per_launch", "parts"])
def test_a_missing_column_is_an_error_whether_or_not_its_field_has_a_default(column: str) -> None:
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match=column):
        rows(TABLE.drop(column), Row, RENAMED)


def test_what_a_field_cannot_hold_is_an_error() -> None:
    nothing = TABLE.with_columns(pl.lit(None).alias("start_ns"))
    text = TABLE.with_columns(pl.lit("1").alias("works"))
    for table in (nothing, text):
        with pytest.raises(msgspec.ValidationError):
            rows(table, Row, RENAMED, parts=[[]] * 3)


def test_what_is_given_is_one_value_a_row_of_a_field_there_is() -> None:
    with pytest.raises(ValueError):
        rows(TABLE, Row, RENAMED, parts=[[]])
    with pytest.raises(TypeError):
        rows(TABLE, Row, RENAMED, parts=[[]] * 3, other=[1, 2, 3])


def test_rows_by_a_column() -> None:
    times = TABLE.select("name", device_time_ns="works")
    assert rows_by(times, "name", Part) == {
        "a": [Part(name="a", device_time_us=0.001), Part(name="a", device_time_us=0.003)],
        "b": [Part(name="b", device_time_us=0.002)],
    }


def test_an_empty_table_has_no_rows() -> None:
    none = TABLE.clear()
    assert rows(none, Row, RENAMED, parts=rows_within(none["parts"], Part)) == []
    assert rows_by(none.select("name", device_time_ns="works"), "name", Part) == {}
