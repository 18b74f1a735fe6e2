"""overlay against a count of every instant."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analysis.time.intervals import overlay

# Disjoint intervals of one key: gaps and lengths in turn, so that some touch and some are empty.
timelines = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=6)


def _table(pieces: list[tuple[int, int]], key: int, first_row: int) -> list[dict[str, int]]:
    rows, at = [], 0
    for row, (gap, length) in enumerate(pieces):
        rows.append({"key": key, "start_ns": at + gap, "end_ns": at + gap + length, "row": first_row + row})
        at += gap + length
    return rows


SCHEMA = {"key": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "row": pl.UInt32}


@given(st.lists(timelines, min_size=4, max_size=4))
def test_every_instant_has_the_rows_that_cover_it(drawn: list[list[tuple[int, int]]]) -> None:
    a = _table(drawn[0], 0, 0) + _table(drawn[1], 1, 10)
    b = _table(drawn[2], 0, 0) + _table(drawn[3], 1, 10)
    cut = overlay({"a": pl.DataFrame(a, SCHEMA), "b": pl.DataFrame(b, SCHEMA)}, ["key"]).rows(named=True)

    def covering(rows: list[dict[str, int]], key: int, instant: int) -> int | None:
        found = [r["row"] for r in rows if r["key"] == key and r["start_ns"] <= instant < r["end_ns"]]
        return found[0] if found else None

    for key in (0, 1):
        for instant in range(60):
            want = (covering(a, key, instant), covering(b, key, instant))
            here = [r for r in cut if r["key"] == key and r["start_ns"] <= instant < r["end_ns"]]
            assert len(here) == (want != (None, None))
            if here:
                assert (here[0]["a"], here[0]["b"]) == want
