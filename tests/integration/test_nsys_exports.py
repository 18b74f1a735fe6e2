"""Real exports of Nsight Systems: counts and sums as SQL has them, busy time by brute force, every view."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from command import kinetoscope
from kinetoscope.analysis.health.verdict import health
from kinetoscope.document.collect import devices
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.model import Trace

EXPORTS = ("h100_2gpu_1s", "mfu_2gpu_before", "fill_and_sum")  # the last of schema 3.24, the others of 3.25
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
ABSENT = (
    f'{ACTIVITY}MEMSET(start, "end", globalPid, streamId)',
    'NVTX_EVENTS(start, "end", globalTid, text, textId)',
    'PROFILER_OVERHEAD(start, "end", globalTid)',
)


class Pair:
    """A run, and the database that it was read from."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, load(path)
        self._database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        there = {name for (name,) in self.sql("SELECT name FROM sqlite_master")}
        for table in (table for table in ABSENT if table.partition("(")[0] not in there):
            self._database.execute(f"CREATE TEMP TABLE {table}")  # nsys writes no table without rows

    def sql(self, query: str, *values: object) -> list[tuple[int, ...]]:
        return self._database.execute(query, values).fetchall()


@pytest.fixture(scope="module", params=EXPORTS)
def pair(
    request: pytest.FixtureRequest,
    recorded: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    path = tmp_path_factory.mktemp("nsys") / f"{request.param}.sqlite"
    path.write_bytes(gzip.decompress(recorded(f"nsys/{path.name}.gz").read_bytes()))
    return Pair(path)


def process(trace: Trace) -> int:
    recorder = trace.metadata["recorder"]
    assert isinstance(recorder, dict)
    return int(recorder["pid"])


def test_counts_and_sums_equal_sql(pair: Pair) -> None:
    processes = pair.sql(f"SELECT count(DISTINCT globalPid) FROM {ACTIVITY}KERNEL")
    assert [(len(pair.run.traces),)] == processes
    for trace in pair.run.traces:
        pid, device, host = process(trace), trace.device_events, trace.host_events
        for kind in ("kernel", "memcpy", "memset"):
            own = device.filter(device["kind"] == kind)
            (found,) = pair.sql(
                'SELECT count(*), coalesce(sum("end" - start), 0), min(start), max("end"), '
                f"count(DISTINCT streamId) FROM {ACTIVITY}{kind.upper()} "
                "WHERE globalPid >> 24 & 0xffffff = ?",
                pid,
            )
            ends = own["start_ns"] + own["duration_ns"]
            assert (
                len(own), own["duration_ns"].sum(), own["start_ns"].min(), ends.max(),
                own["stream"].n_unique(),
            ) == found  # fmt: skip
        waits = trace.device_annotations.filter(trace.device_annotations["category"] == "cuda_sync")
        waited = f'SELECT count(*), sum("end" - start) FROM {ACTIVITY}SYNCHRONIZATION WHERE '
        assert (len(waits), waits["duration_ns"].sum()) == pair.sql(
            f"{waited} globalPid >> 24 & 0xffffff = ?", pid
        )[0]
        overhead = host.filter(host["category"].cast(str) == "overhead")
        spent = [
            pair.sql(f'SELECT count(*), coalesce(sum("end" - start), 0) FROM {table} WHERE globalTid >> 24 & '
                     "0xffffff = ?", pid)[0]
            for table in (f"{ACTIVITY}OVERHEAD", "PROFILER_OVERHEAD")
        ]  # fmt: skip
        assert (len(overhead), overhead["duration_ns"].sum()) == tuple(map(sum, zip(*spent, strict=True)))
        copied = f"SELECT sum(bytes) FROM {ACTIVITY}MEMCPY WHERE globalPid >> 24 & 0xffffff = ?"
        assert device.filter(device["kind"] == "memcpy")["bytes"].sum() == pair.sql(copied, pid)[0][0]
        for category, table, where in (
            ("cuda_runtime", f"{ACTIVITY}RUNTIME", "eventClass = 0"),
            ("cuda_driver", f"{ACTIVITY}RUNTIME", "eventClass = 1"),
            ("cpu_op", "NVTX_EVENTS", "(text LIKE 'aten::%' OR text LIKE '%seq =%' OR text LIKE 'c10d::%' "
             "OR text LIKE 'flash_attn::%' OR text LIKE 'detach_,%' OR text LIKE 'record_param_comms%')"),
            ("nvtx", "NVTX_EVENTS LEFT JOIN StringIds ON id = textId", "value LIKE 'nccl%'"),
        ):  # fmt: skip
            own = host.filter(host["category"].cast(str) == category)
            query = f'SELECT count(*), coalesce(sum("end" - start), 0) FROM {table} WHERE {where} AND '
            assert (len(own), own["duration_ns"].sum()) == pair.sql(
                f"{query} globalTid >> 24 & 0xffffff = ?", pid
            )[0]


def test_launches_are_the_calls_of_the_same_process_and_correlation(pair: Pair) -> None:
    for trace in pair.run.traces:
        (found,) = pair.sql(
            f"SELECT count(*), sum(r.start) FROM {ACTIVITY}KERNEL k JOIN {ACTIVITY}RUNTIME r "
            "ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24 "
            "WHERE k.globalPid >> 24 & 0xffffff = ?",
            process(trace),
        )
        kernels = trace.device_events.filter(trace.device_events["kind"] == "kernel")
        launched = kernels["launch"].drop_nulls()
        assert (len(launched), trace.host_events["start_ns"].gather(launched).sum()) == found


def test_busy_time_is_that_of_brute_force(pair: Pair) -> None:
    rows = {row.rank: row for row in devices.devices(pair.run)}
    for trace in pair.run.traces:
        intervals = sorted(
            interval
            for kind in ("KERNEL", "MEMCPY", "MEMSET")
            for interval in pair.sql(
                f'SELECT start, "end" FROM {ACTIVITY}{kind} WHERE globalPid >> 24 & 0xffffff = ?',
                process(trace),
            )
        )
        busy, reached = 0, 0
        for start, end in intervals:
            busy += max(0, end - max(start, reached))
            reached = max(reached, end)
        assert rows[trace.rank].busy_us == pytest.approx(busy / 1000, abs=0.001)


@pytest.mark.parametrize(
    ("pair", "version"),
    [("mfu_2gpu_before", "2026.2.1.210"), ("fill_and_sum", "2026.1.1.204")],
    indirect=["pair"],
)
def test_verbs_answer(pair: Pair, version: str, tmp_path: Path) -> None:
    (wanted,) = pair.sql(f"SELECT count(*) FROM {ACTIVITY}KERNEL")[0]
    counted = "SELECT count(*) AS n FROM device_events WHERE kind = 'kernel'"
    assert str(wanted) in kinetoscope("query", pair.path, counted).stdout
    written = tmp_path / "report.json"
    assert kinetoscope("report", pair.path, "-o", written).returncode == 0
    assert f"recorded by Nsight Systems {version}" in written.read_text()


Change = Callable[[sqlite3.Connection, dict[str, list[str]]], None]


def versioned(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    for table in tables:
        database.execute(f'ALTER TABLE "{table}" RENAME TO "{table}_V3"')
        database.execute(f'CREATE TABLE "{table}_V2" (start, "end", id, value)')


def in_another_order(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    """From nsys 2025.6 on rows are in no order."""
    for table in tables:
        rebuilt(database, table, tables[table], "*", "ORDER BY random()")


def zeros_for_nulls(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    """As nsys wrote them until 2021, when no column could be null."""
    for table in (table for table in tables if table.startswith((ACTIVITY, "NVTX_EVENTS"))):
        for column in {*tables[table]} - {"end", "text", "jsonText", "binaryData"}:
            database.execute(f'UPDATE "{table}" SET "{column}" = 0 WHERE "{column}" IS NULL')


def without_what_is_not_needed(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    for table in tables:
        if table.startswith(("ENUM", "META_DATA", "ANALYSIS", "ProcessStreams")):
            database.execute(f'DROP TABLE "{table}"')
    for column in ("eventClass", "returnValue", "callchainId"):
        database.execute(f'ALTER TABLE {ACTIVITY}RUNTIME DROP COLUMN "{column}"')


def with_more(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    database.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_OF_TOMORROW (start, "end", globalPid, "new one")')
    for table in tables:
        database.execute(f'ALTER TABLE "{table}" ADD COLUMN "of tomorrow" DEFAULT 7')


def names_in_place(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    for table, column in (
        (f"{ACTIVITY}KERNEL", "demangledName"), (f"{ACTIVITY}RUNTIME", "nameId"), ("NVTX_EVENTS", "textId"),
    ):  # fmt: skip
        if table in tables:
            database.execute(
                f'UPDATE "{table}" SET "{column}" = (SELECT value FROM StringIds WHERE id = "{column}") '
                f'WHERE "{column}" IN (SELECT id FROM StringIds)'
            )


def ids_as_texts(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
    for table in tables:
        columns = ", ".join(
            f'CAST("{name}" AS TEXT)'
            if name in NAMES or (table, name) == ("StringIds", "id")
            else f'"{name}"'
            for name in tables[table]
        )
        rebuilt(database, table, tables[table], columns)


def rebuilt(
    database: sqlite3.Connection, table: str, columns: list[str], chosen: str, order: str = ""
) -> None:
    declared = ", ".join(f'"{name}"' for name in columns)
    database.execute(f"CREATE TABLE rebuilt ({declared})")
    database.execute(f'INSERT INTO rebuilt SELECT {chosen} FROM "{table}" {order}')
    database.execute(f'DROP TABLE "{table}"')
    database.execute(f'ALTER TABLE rebuilt RENAME TO "{table}"')


NAMES = ("demangledName", "shortName", "nameId", "textId")


def changed(path: Path, target: Path, change: Change | str) -> Path:
    """A copy of an export, changed as another version of nsys might write it."""
    target.write_bytes(path.read_bytes())
    with sqlite3.connect(target) as database:
        for (index,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall():
            database.execute(f'DROP INDEX "{index}"')
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')] for name in names
        }
        if isinstance(change, str):
            database.execute(change)
        else:
            change(database, columns)
    database.close()
    return target


def facts(run: LoadedRun) -> list[object]:
    """All device work and all that the host did, in an order of their own."""
    found: list[object] = []
    for trace in run.traces:
        device, host = trace.device_events, trace.host_events
        of = {
            "call": host["name"].cast(str).gather(device["launch"]),
            "op": host["name"].cast(str).gather(device["op"]),
        }
        columns = ("start_ns", "duration_ns", "name", "device", "stream", "bytes", "graph", "graph_node")
        found.append(sorted(device.select(*columns).with_columns(**of).rows(), key=repr))
        found.append(sorted(host.select("start_ns", "duration_ns", "category", "name").rows(), key=repr))
        found.append(sorted(trace.device_annotations.select("start_ns", "name").rows(), key=repr))
    return found


@pytest.mark.parametrize(
    "change",
    [versioned, in_another_order, zeros_for_nulls, without_what_is_not_needed, with_more, names_in_place,
     ids_as_texts],
)  # fmt: skip
@pytest.mark.parametrize("pair", ["mfu_2gpu_before", "fill_and_sum"], indirect=True)
def test_other_versions_of_the_export_say_the_same(pair: Pair, change: Change, tmp_path: Path) -> None:
    run = load(changed(pair.path, tmp_path / "x.sqlite", change))
    assert facts(run) == facts(pair.run)
    assert [note.code for note in health(run).notes] == [note.code for note in health(pair.run).notes]


@pytest.mark.parametrize("pair", ["fill_and_sum"], indirect=True)
@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        (f"ALTER TABLE {ACTIVITY}KERNEL DROP COLUMN correlationId", f"{ACTIVITY}KERNEL.correlationId"),
        (f"ALTER TABLE {ACTIVITY}RUNTIME DROP COLUMN nameId", f"{ACTIVITY}RUNTIME.nameId"),
        ("DROP TABLE StringIds", "StringIds.value"),
        (f"ALTER TABLE {ACTIVITY}MEMCPY DROP COLUMN bytes", f"{ACTIVITY}MEMCPY.bytes"),
    ],
)
def test_a_layout_that_is_not_known_is_said_and_nothing_is_concluded_from_it(
    pair: Pair, change: str, lacks: str, tmp_path: Path
) -> None:
    run = load(changed(pair.path, tmp_path / "x.sqlite", change))
    notes = {note.code: note.text for note in health(run).notes}
    assert f"has no {lacks}: that layout is not known" in notes["unknown-export"]
    assert health(run).verdict == "unreliable"
    assert "launches-without-kernel" not in notes
    assert not any("before recording began" in text for text in notes.values())
    (before,), (after,) = pair.run.traces, run.traces
    columns = ("start_ns", "duration_ns", "stream")
    assert after.device_events.select(*columns).equals(before.device_events.select(*columns))


@pytest.mark.parametrize("pair", ["fill_and_sum"], indirect=True)
def test_without_processes_everything_is_of_the_only_one(pair: Pair, tmp_path: Path) -> None:
    def unknown(database: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
        for table in (f"{ACTIVITY}KERNEL", f"{ACTIVITY}MEMCPY", f"{ACTIVITY}SYNCHRONIZATION"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN globalPid")

    run = load(changed(pair.path, tmp_path / "x.sqlite", unknown))
    assert facts(run) == facts(pair.run)
