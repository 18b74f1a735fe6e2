"""``kinetoscope query`` against the raw events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from command import RECORDING, SMALL, kinetoscope
from kinetoscope.analysis.query import TABLES, query, tables
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import load


@pytest.fixture(scope="module")
def events():
    return json.loads(gzip.decompress(RECORDING.read_bytes()))["traceEvents"]


def rows(sql, *inputs):
    done = kinetoscope("query", *(inputs or [RECORDING]), sql, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sums_are_those_of_the_raw_events(events):
    kernels = [event for event in events if event.get("cat") == "kernel"]
    (row,) = rows("SELECT COUNT(*) AS n, SUM(duration_ns) AS ns FROM device_events WHERE kind = 'kernel'")
    assert row["n"] == len(kernels)
    assert row["ns"] == sum(round(event["dur"] * 1000) for event in kernels)


def test_names_are_text_to_search(events):
    found = rows("SELECT name, duration_ns FROM host_events WHERE name LIKE 'cudaLaunch%'")
    assert len(found) == sum(str(event.get("name")).startswith("cudaLaunch") for event in events)


def test_device_work_knows_its_op_step_and_launch(events):
    found = rows(
        "SELECT d.op_name AS shown, h.name AS joined, d.launch_start_ns AS start, l.start_ns AS launch_start"
        " FROM device_events d JOIN host_events h ON d.op = h.id JOIN host_events l ON d.launch = l.id"
    )
    assert found
    assert all(row["shown"] == row["joined"] and row["start"] == row["launch_start"] for row in found)
    steps = {row["step_name"] for row in rows("SELECT DISTINCT step_name FROM device_events")}
    assert {"ProfilerStep#1", "ProfilerStep#2"} <= steps


def test_declared_and_offered_columns_are_the_same():
    profile = load(SMALL)
    for name, frame in tables(profile).items():
        schema = frame.collect_schema()
        assert list(schema) == list(TABLES[name])
        assert {column: schema[column] for column in schema} == {
            column: declared.dtype for column, declared in TABLES[name].items()
        }


def test_every_rank_is_in_the_tables():
    profile = load(SMALL, SMALL)
    one = tables(load(SMALL))["device_events"].collect()
    assert len(tables(profile)["device_events"].collect()) >= 2 * len(one)


def test_the_tables_are_listed_with_their_meanings():
    done = kinetoscope("query", "--tables")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if not line.startswith(" ")] == list(TABLES)
    listed = json.loads(kinetoscope("query", "--tables", "--json").stdout)
    assert {(row["table"], row["column"]) for row in listed} == {
        (table, column) for table, columns in TABLES.items() for column in columns
    }


def test_a_long_answer_is_cut_and_says_so():
    done = kinetoscope("query", RECORDING, "SELECT id, name FROM host_events", "--limit", "5")
    assert len(done.stdout.splitlines()) == 6
    assert "--limit 0" in done.stderr


def test_missing_values_are_shown_as_a_dash():
    done = kinetoscope("query", SMALL, "SELECT NULL AS nothing, 1.5 AS number, 'text' AS word")
    assert done.stdout.split() == ["nothing", "number", "word", "–", "1.5", "text"]


READING = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM READ_CSV('{file}')",
    "SELECT * FROM \"read_csv\" ('{file}')",
    "SELECT * FROM 'read_csv'('{file}')",
    "SELECT * FROM `read_csv`/* ( */('{file}')",
    "SELECT '/*' FROM read_csv('{file}') WHERE '*/' = ''",
    "WITH x AS (SELECT * FROM read_csv('{file}')) SELECT * FROM x",
    "SELECT * FROM steps JOIN read_parquet('{file}') ON TRUE",
]


@pytest.mark.parametrize("sql", READING)
def test_files_are_read_only_where_that_is_allowed(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\nhidden\n")
    run, statement = load(SMALL), sql.format(file=file)
    with pytest.raises(UsageError, match="read files") as refused:
        query(run, statement)
    assert "--allow-files" in str(refused.value)


def test_files_that_are_allowed_are_read(tmp_path: Path) -> None:
    file = tmp_path / "shown.csv"
    file.write_text("a\nshown\n")
    found = query(load(SMALL), f"SELECT * FROM read_csv('{file}')", allow_files=True)
    assert found.rows() == [("shown",)]


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE steps", "CREATE TABLE x AS SELECT 1", "DELETE FROM steps", "-- SELECT\nTRUNCATE steps", ""],
)
def test_what_is_no_select_is_refused(sql: str) -> None:
    with pytest.raises(UsageError, match="only a SELECT"):
        query(load(SMALL), sql)


def test_a_select_may_begin_as_sql_lets_it() -> None:
    run = load(SMALL)
    for sql in (
        "-- all\nselect 1 AS a",
        "/* all */ (SELECT 1 AS a)",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    ):
        assert query(run, sql).rows() == [(1,)]


def test_names_are_whole_and_records_stand_in_blocks_where_columns_do_not_fit():
    by_length = "FROM device_events ORDER BY length(name) DESC LIMIT"
    (longest,) = json.loads(kinetoscope("query", RECORDING, f"SELECT name {by_length} 1", "--json").stdout)
    name = "".join(longest["name"].split())
    beside = kinetoscope("query", RECORDING, f"SELECT name {by_length} 1").stdout
    assert name in "".join(beside.split())
    blocks = kinetoscope("query", RECORDING, f"SELECT * {by_length} 2").stdout
    assert blocks.startswith("row 1\n")
    assert "row 2\n" in blocks
    assert "…" not in blocks
    assert name in "".join(blocks.split())


@pytest.mark.parametrize("ns", ["start_ns", "start_ns * 1000", "start_ns * 1000000"])
def test_times_of_any_age_are_shown_or_refused(ns: str) -> None:
    done = kinetoscope("query", SMALL, f"SELECT CAST({ns} AS TIMESTAMP) FROM host_events LIMIT 2")
    assert done.returncode in (0, 2)
    assert "fault" not in done.stderr


@pytest.mark.parametrize("cell", ["::add-mask::x", "  ::error::x"])
def test_no_line_begins_with_what_a_workflow_obeys(cell: str) -> None:
    from kinetoscope.views import query

    (row,) = query.listing(["a"], [False], [[cell]]).rows
    assert not str(row[0]).lstrip().startswith("::")
    assert str(row[0]).endswith(cell.lstrip())
