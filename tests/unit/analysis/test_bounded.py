"""Statements that have no end: they are ended, and what is said helps."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kinetoscope.analysis import bounded
from kinetoscope.analysis.query import query
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import load

TRACE = Path(__file__).parents[2] / "fixtures" / "h200_breaks" / "breaks.json.gz"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT LPAD(name, 2000000000) FROM host_events",
        "SELECT * FROM generate_series(1, 9000000000000)",
        "SELECT COLUMNS('[') FROM host_events",
    ],
)
def test_what_the_engine_gives_up_on_is_an_error(sql: str) -> None:
    with pytest.raises(UsageError, match="cannot be run") as refused:
        query(load(TRACE), sql)
    assert refused.value.hint


def test_the_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bounded.SECONDS_VARIABLE, "1")
    with pytest.raises(UsageError, match="more than 1 s") as refused:
        query(load(TRACE), f"SELECT {'+'.join('1' * 5000)}")
    assert bounded.SECONDS_VARIABLE in str(refused.value)


def test_rows_come_back_as_they_are() -> None:
    table = pl.DataFrame({"a": [1, None], "b": ["x", "é"], "c": [[1, 2], []]})
    rows = bounded.executed({"t": table.lazy(), "unused": table.lazy()}, "SELECT * FROM t")
    assert rows.equals(table)
