"""Tables kept for the next time: the same trace, invalidated by any change, bounded, safe to lose."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinetoscope.recording import manifest
from kinetoscope.trace import cache, schema
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KINETOSCOPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    monkeypatch.setattr(cache, "CLEANED_AFTER", 1)
    return tmp_path / "cache" / "kinetoscope" / "traces"


def write(path: Path, *names: str, **keys: Any) -> Path:
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": n,
            "dur": 1,
            "args": {"External id": n},
        }
        for n, name in enumerate(names)
    ]
    events.append({"ph": "C", "name": "counter", "ts": 1})
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"traceEvents": events, "deviceProperties": [device], "traceName": "x", **keys})
    )
    return path


def parsed(path: Path, rank: int | None = None) -> tuple[Trace, bool]:
    """The trace, and whether its file had to be parsed for it."""
    progress: list[int] = []
    return read(path, rank=rank, progress=lambda done, size: progress.append(done)), bool(progress)


def test_the_second_reading_gives_the_same_trace_without_parsing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", "a", "b")
    (first, was_parsed), (second, again) = parsed(path), parsed(path, rank=3)
    assert (was_parsed, again) == (True, False)
    for name in schema.TABLES:
        assert second.table(name).equals(first.table(name))
        assert second.table(name).schema == first.table(name).schema
    assert second.devices == first.devices
    assert dict(second.metadata) == dict(first.metadata)
    assert (first.rank, second.rank) == (0, 3)
    assert second.source.unused == {"C": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache", "t.json"]


def test_what_joined_events_is_left_out_where_it_is_not_asked_for_and_kept_nonetheless(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "t.json", "a")
    flow = {"ph": "s", "id": 5, "cat": "ac2g", "name": "x", "pid": 1, "tid": 1, "ts": 2}
    path.write_text(path.read_text().replace('"traceEvents": [', f'"traceEvents": [{json.dumps(flow)}, '))
    found = [read(path, links=False), read(path, links=False), read(path)]
    assert [len(trace.flows) for trace in found] == [0, 0, 1]
    assert [trace.host_events["external_id"].to_list() for trace in found] == [[None], [None], [0]]
    for name in schema.HELD:
        assert len({tuple(getattr(trace, name).schema.items()) for trace in found}) == 1


def test_damages_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph":"X","name":"a","ts":1,"dur":-1},{"ph":"X","name":"b","ts":2,"dur":1}')
    first, second = read(path), read(path)
    assert [damage.code for damage in second.source.damages] == ["truncated", "impossible-duration"]
    assert second.source == first.source


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", "a")
    assert not cache.is_kept(path)
    read(path)
    assert cache.is_kept(path)
    write(path, "b")
    assert not cache.is_kept(path)
    assert read(path).host_events["name"].to_list() == ["b"]


def test_a_moved_file_is_not_parsed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", "a")
    read(path)
    moved = path.rename(tmp_path / "moved.json")
    trace, again = parsed(moved)
    assert trace.source.path == str(moved)
    assert not again


def test_the_cache_can_be_turned_off(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETOSCOPE_CACHE", "0")
    read(write(tmp_path / "t.json", "a"))
    assert not home.exists()


def test_a_corrupt_entry_is_as_good_as_none(tmp_path: Path, home: Path) -> None:
    path = write(tmp_path / "t.json", "a")
    for damage in ("host_events.parquet", "facts.json"):
        read(path)
        (entry,) = home.iterdir()
        (entry / damage).write_bytes(b"no")
        assert read(path).host_events["name"].to_list() == ["a"]
        assert (entry / damage).stat().st_size > 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_never_ends_is_no_entry(tmp_path: Path, home: Path) -> None:
    path = write(tmp_path / "t.json", "a")
    for name in ("host_events.parquet", "facts.json"):
        for endless in (os.mkfifo, lambda place: place.symlink_to("/dev/zero")):
            read(path)
            (entry,) = home.iterdir()
            (entry / name).unlink()
            endless(entry / name)
            assert read(path).host_events["name"].to_list() == ["a"]


def test_a_recording_keeps_its_tables_itself(tmp_path: Path, home: Path) -> None:
    recording = tmp_path / "recording"
    path = write(recording / "trace" / "rank0.json", "a")
    (recording / manifest.FILE).write_text("{}")
    read(path)
    assert len(list((recording / "tables").iterdir())) == 1
    assert not home.exists()


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(write(tmp_path / "a.json", "a"))
    (a,) = home.iterdir()
    size = sum(file.stat().st_size for file in a.iterdir())
    monkeypatch.setenv("KINETOSCOPE_CACHE_SIZE", str(int(size * 2.5)))
    read(write(tmp_path / "b.json", "b"))
    (b,) = set(home.iterdir()) - {a}
    os.utime(a, (1, 1))
    os.utime(b, (2, 2))
    read(tmp_path / "a.json")
    read(write(tmp_path / "c.json", "c"))
    assert a.exists()
    assert not b.exists()


def test_small_entries_are_bounded_too_without_a_look_at_all_of_them_each_time(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CLEANED_AFTER", 1_000)
    monkeypatch.setenv("KINETOSCOPE_CACHE_SIZE", "1")
    counts = []
    for number in range(60):
        path = write(tmp_path / f"{number}.json", str(number))
        os.utime(path, (number, number))  # entries are named by it: the same in every run
        read(path)
        counts.append(len(list(home.iterdir())))
    assert 1 < max(counts) < 60


def test_writers_at_the_same_time_leave_one_whole_entry(tmp_path: Path, home: Path) -> None:
    path = write(tmp_path / "t.json", *map(str, range(200)))
    with ThreadPoolExecutor(8) as threads:
        traces = list(threads.map(lambda _: read(path), range(16)))
    assert all(len(trace.host_events) == 200 for trace in traces)
    assert len(list(home.iterdir())) == 1


def test_a_folder_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert read(write(tmp_path / "t.json", "a")).source.events == 2


def test_tables_that_are_not_those_kept_are_read_again(tmp_path: Path, home: Path) -> None:
    """Fewer rows than were kept, and rows that refer to some that are not there."""
    path = write(tmp_path / "t.json", "a", "b")
    for column, value in (("name", None), ("parent", 7)):
        first = read(path)
        (entry,) = home.iterdir()
        file = entry / "host_events.parquet"
        changed = first.host_events
        if value is None:
            changed = changed.head(1)
        else:
            changed = changed.with_columns(pl.lit(value, changed[column].dtype).alias(column))
        changed.write_parquet(file)
        facts = json.loads((entry / "facts.json").read_bytes())
        if value is not None:  # as somebody would who wants them to be believed
            facts["files"]["host_events"] = [len(changed), file.stat().st_size]
            (entry / "facts.json").write_text(json.dumps(facts))
        again, was_parsed = parsed(path)
        assert was_parsed
        assert again.host_events["name"].to_list() == ["a", "b"]


def test_tables_are_not_kept_behind_a_link(tmp_path: Path, home: Path) -> None:
    path = write(tmp_path / "r" / "trace" / "rank0.json", "a")
    manifest.write(tmp_path / "r", manifest.Manifest())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "r" / "tables").symlink_to(elsewhere)
    read(path)
    assert list(elsewhere.iterdir()) == []
    assert len(list(home.iterdir())) == 1
