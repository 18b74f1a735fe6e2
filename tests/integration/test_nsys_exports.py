"""Real exports of Nsight Systems: counts and sums as SQL has them, busy time by brute force, every view."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from command import kinetoscope
from kinetoscope.document.collect import devices
from kinetoscope.sources.run import load
from kinetoscope.trace.model import Trace

EXPORTS = ("h100_2gpu_1s", "mfu_2gpu_before", "fill_and_sum")  # the last of schema 3.24, the others of 3.25
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
ABSENT = (
    f'{ACTIVITY}MEMSET(start, "end", globalPid, streamId)',
    'NVTX_EVENTS(start, "end", globalTid, text, textId)',
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
