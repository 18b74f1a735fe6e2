"""Databases that are damaged, cut or made to harm: nothing in them runs, reading ends, losses are said."""

from __future__ import annotations

import gzip
import os
import sqlite3
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from kinetoscope.errors import InputError, NotATraceError, TooLargeError
from kinetoscope.sources.run import load
from kinetoscope.trace.container import is_database
from kinetoscope.trace.database import Database
from kinetoscope.trace.nsys import read

PAGE = 4096


def made(path: Path, kernels: int = 3000, *, extra: str = "") -> Path:
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
            "INSERT INTO StringIds VALUES (1, 'k');"
            'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, "end" INT, deviceId INT, shortName INT);'
        )
        rows = ((1000 * n, 1000 * n + 500, 0, 1) for n in range(kernels))
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", rows)
        database.executescript(extra)
    database.close()
    return path


def kernels(path: Path) -> int:
    return sum(len(trace.device_events) for trace in load(path).traces)


def test_views_triggers_and_generated_columns_are_not_run(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    path = made(
        tmp_path / "x.sqlite",
        extra=(
            f"CREATE VIEW NVTX_EVENTS AS SELECT x AS start, x AS [end], 'a' AS text FROM ({endless});"
            f"CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS {endless};"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INT, [end] INT,"
            " bytes INT GENERATED ALWAYS AS (length(zeroblob(900000000))) VIRTUAL);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (7, 9);"
            "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END;"
        ),
    )
    before = path.read_bytes()
    (trace,) = read(path)
    assert trace.device_events["kind"].value_counts().sort("count").rows() == [
        ("memset", 1),
        ("kernel", 3000),
    ]
    assert trace.device_events.filter(trace.device_events["kind"] == "memset")["bytes"].to_list() == [None]
    assert [(damage.code, damage.count) for damage in trace.source.damages] == [("unread-view", 2)]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.sqlite"]


def test_neither_a_journal_nor_a_log_next_to_it_is_applied(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite")
    for suffix in ("-wal", "-journal", "-shm"):
        (tmp_path / f"x.sqlite{suffix}").write_bytes(b"\x37\x7f\x06\x82" + b"\xff" * 4000)
    (trace,) = load(path).traces
    assert len(trace.device_events) == 3000
    assert [(damage.code, damage.count) for damage in trace.source.damages] == [("unapplied-log", 2)]
    assert "wal_checkpoint" in trace.source.damages[0].text
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("name", ["a b?mode=rwc.sqlite", "50%41#x.sqlite"])
def test_a_name_is_a_name(name: str, tmp_path: Path) -> None:
    assert kernels(made(tmp_path / name)) == 3000
    assert os.listdir(tmp_path) == [name]


def test_a_cut_file_is_salvaged_and_said(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    run = load(path)
    (trace,) = run.traces
    assert 500 < len(trace.device_events) < 2500
    assert not trace.source.complete
    assert [damage.code for damage in trace.source.damages][:2] == ["cut-database", "unreadable-table"]
    assert "is incomplete" in run.remarks[0]
    path.write_bytes(whole[:700])
    with pytest.raises(InputError):
        load(path)


def test_bytes_that_are_changed_end_in_a_trace_or_a_refusal(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole.sqlite", 600).read_bytes()
    path, read_, refused = tmp_path / "x.sqlite", 0, 0
    for place in [*range(16, 120, 8), *range(120, len(whole), len(whole) // 30)]:
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            read(path)
            read_ += 1
        except InputError:
            refused += 1
    assert read_ > refused > 0


def test_a_page_that_is_shown_again_and_again_is_not_followed_without_end(tmp_path: Path) -> None:
    path = made(tmp_path / "x.sqlite")
    data = bytearray(path.read_bytes())
    with sqlite3.connect(path) as database:
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ).fetchone()
    database.close()
    at = (root - 1) * PAGE
    assert data[at] == 5  # an inner page: each of its cells leads to another
    (cells,) = struct.unpack(">H", data[at + 3 : at + 5])
    # Cells enough for more rows than the file has room for, each leading to the same leaf.
    leaf = data[at + 8 : at + 12]
    most = 600
    data[at + 3 : at + 5] = struct.pack(">H", most)
    cell = struct.unpack(">H", data[at + 12 : at + 14])[0]
    data[at + cell : at + cell + 4] = leaf
    data[at + 12 : at + 12 + 2 * most] = struct.pack(">H", cell) * most
    path.write_bytes(data)
    room = len(data) // 4
    with suppress(NotATraceError):
        assert kernels(path) <= room
    assert cells < most


def test_texts_and_numbers_of_other_types_are_left_empty(tmp_path: Path) -> None:
    path = made(
        tmp_path / "x.sqlite",
        1,
        extra=(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 2500, 'a', 1), (3000, 3500, x'00', x'01'),"
            " (4000, 4500, 1e300, 9223372036854775807);"
            "INSERT INTO StringIds VALUES (2, x'ff'), (3, CAST(x'ff41' AS TEXT));"
        ),
    )
    (trace,) = read(path)
    assert trace.device_events["name"].to_list() == ["k", "k", "(no name)", "(no name)"]
    assert trace.device_events["device"].to_list() == [0, 0, 0, 0]


def test_a_damaged_name_that_is_no_text_is_refused_or_salvaged(tmp_path: Path) -> None:
    whole = made(tmp_path / "x.sqlite", 7).read_bytes()
    path = tmp_path / "x.sqlite"
    for damage in (b"CREATE TABL\x93 StringIds", b"CREATE TABLE String\x93ds", b"CREATE TABLE \x93tringIds"):
        path.write_bytes(whole.replace(b"CREATE TABLE StringIds", damage))
        with suppress(InputError):
            read(path)


def test_what_only_begins_as_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 200)
    assert is_database(path)
    with pytest.raises(NotATraceError, match="damaged") as refusal:
        load(path)
    assert refusal.value.where == str(path)
    assert not is_database(tmp_path)
    assert not is_database(tmp_path / "none")
    with pytest.raises(NotATraceError):
        Database(path)


def test_a_packed_export_is_unpacked_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    path = tmp_path / "x.sqlite.gz"
    path.write_bytes(gzip.compress(made(tmp_path / "x.sqlite", kernels=7).read_bytes()))
    assert is_database(path)
    assert kernels(path) == 7
    monkeypatch.setenv("KINETOSCOPE_MAX_UNPACKED", "1000")
    with pytest.raises(TooLargeError, match="unpacks to more"):
        Database(path)
    assert not list((tmp_path / "temporary").iterdir())
