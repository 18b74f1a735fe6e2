"""Exports, read back as their readers read them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import polars as pl
import pytest

from command import RECORDING, kinetoscope
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import load


def export(kind, target, *inputs):
    done = kinetoscope("export", *(inputs or [RECORDING]), "--to", kind, "-o", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return target


def perfetto_ns(microseconds):
    """As Perfetto's importer reads ``ts`` and ``dur``: cut to whole nanoseconds, not rounded."""
    return int(microseconds * 1000.0)


def overlapping_trace(folder):
    """Slices that no viewer can show on one lane: two kernels of one stream at once, host events that
    cross."""

    def event(category, name, ts, dur, lane, **arguments):
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": lane,
            "tid": lane,
            "ts": ts,
            "dur": dur,
            "args": arguments,
        }

    events = [
        event("cpu_op", "aten::mm", 0.0, 10.0, 1),
        event("cpu_op", "crossing", 5.0, 10.0, 1),
        event("cuda_runtime", "cudaLaunchKernel", 1.001, 2.003, 1, correlation=7),
        event("kernel", "one", 4.035, 8.001, 0, device=0, stream=7, correlation=7),
        event("kernel", "two", 6.007, 9.013, 0, device=0, stream=7),
        event("kernel", "three", 8.0, 1.0, 0, device=0, stream=7),
        event("kernel", "after", 15.02, 1.0, 0, device=0, stream=7),
    ]
    path = folder / "overlap.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def slices(document):
    lanes = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start = perfetto_ns(event["ts"])
            lanes[event["pid"], event["tid"]].append(
                (start, start + perfetto_ns(event["dur"]), event["name"])
            )
    return lanes


def assert_nested(lanes):
    for events in lanes.values():
        still_open = []
        for start, end, name in sorted(events, key=lambda event: (event[0], -event[1])):
            while still_open and still_open[-1] <= start:
                still_open.pop()
            assert not still_open or end <= still_open[-1], name
            still_open.append(end)


@pytest.mark.parametrize("overlapping", [False, True])
def test_perfetto_drops_no_slice(tmp_path, overlapping):
    source = overlapping_trace(tmp_path) if overlapping else RECORDING
    document = json.loads(export("perfetto", tmp_path / "x.json", source).read_text(encoding="utf-8"))
    lanes = slices(document)
    assert_nested(lanes)
    raw = source.read_bytes() if overlapping else gzip.decompress(source.read_bytes())
    before = [event for event in json.loads(raw)["traceEvents"] if event.get("ph") == "X"]
    assert sum(map(len, lanes.values())) == len(before)
    base = min(event["ts"] for event in before)
    expected = sorted((round((e["ts"] - base) * 1000), round(e["dur"] * 1000), e["name"]) for e in before)
    assert sorted((s, e - s, name) for events in lanes.values() for s, e, name in events) == expected


def test_overlapping_work_stands_beside_its_lane(tmp_path):
    document = json.loads(export("perfetto", tmp_path / "x.json", overlapping_trace(tmp_path)).read_text())
    named = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    where = {e["name"]: named[e["tid"]] for e in document["traceEvents"] if e["ph"] == "X"}
    assert where["one"] == where["three"] == where["after"]
    assert where["two"] == f"{where['one']} (overlapping 1)"


def test_perfetto_points_from_launch_to_work(tmp_path):
    document = json.loads(export("perfetto", tmp_path / "x.json", overlapping_trace(tmp_path)).read_text())
    at = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in document["traceEvents"] if e["ph"] == "X"}
    arrows = [at[e["pid"], e["tid"], e["ts"]] for e in document["traceEvents"] if e["ph"] in "sf"]
    assert arrows == ["cudaLaunchKernel", "one"]


def test_what_perfetto_gets_reports_the_same(tmp_path):
    before = build(load(RECORDING))
    after = build(load(export("perfetto", tmp_path / "x.json")))
    (one,), (other,) = before.devices, after.devices
    assert (one.busy_us, one.window_us, one.span_us, one.kernel_launches, one.unattributed_kernels) == (
        other.busy_us,
        other.window_us,
        other.span_us,
        other.kernel_launches,
        other.unattributed_kernels,
    )
    assert [(k.name, k.device_time_us, k.launches) for k in before.kernels] == [
        (k.name, k.device_time_us, k.launches) for k in after.kernels
    ]


def test_a_name_ending_in_gz_is_compressed(tmp_path):
    plain = export("perfetto", tmp_path / "x.json").read_bytes()
    packed = export("perfetto", tmp_path / "x.json.gz").read_bytes()
    assert gzip.decompress(packed) == plain


def test_speedscope_profiles_open_and_close(tmp_path):
    for source in (RECORDING, overlapping_trace(tmp_path)):
        document = json.loads(export("speedscope", tmp_path / "x.json", source).read_bytes())
        frames = document["shared"]["frames"]
        opened = 0
        for profile in document["profiles"]:
            assert profile["type"] == "evented"
            still_open, now = [], 0
            for event in profile["events"]:
                assert event["at"] >= now
                now = event["at"]
                if event["type"] == "O":
                    still_open.append(event["frame"])
                    opened += 1
                else:
                    assert still_open.pop() == event["frame"]
            assert still_open == []
            assert now <= profile["endValue"]
        raw = source.read_bytes() if source.suffix == ".json" else gzip.decompress(source.read_bytes())
        before = [event for event in json.loads(raw)["traceEvents"] if event.get("ph") == "X"]
        assert opened == len(before)
        assert {frame["name"] for frame in frames} == {event["name"] for event in before}


def test_parquet_holds_the_tables(tmp_path):
    folder = export("parquet", tmp_path / "tables")
    work = pl.read_parquet(folder / "device_events.parquet")
    raw = [
        e
        for e in json.loads(gzip.decompress(RECORDING.read_bytes()))["traceEvents"]
        if e.get("cat") == "kernel"
    ]
    kernels = work.filter(pl.col("kind") == "kernel")
    assert len(kernels) == len(raw)
    assert kernels["duration_ns"].sum() == sum(round(event["dur"] * 1000) for event in raw)
    assert kernels["name"].dtype == pl.String
    export("parquet", tmp_path / "tables")  # again, over its own files
