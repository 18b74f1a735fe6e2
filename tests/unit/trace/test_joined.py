"""A trace of torch's profiler joined with an export of Nsight Systems, kernel by kernel in order."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest

import traces
from command import kinetoscope
from kinetoscope.analysis.health.verdict import health
from kinetoscope.sources.run import load
from kinetoscope.trace.joined import _in_common, aligned
from kinetoscope.trace.model import JOINED, JoinedExport, Trace
from kinetoscope.trace.nsys import read as read_export
from kinetoscope.trace.read import read
from nsys_exports import KERNEL, of_trace, thread

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200"
STEP = 1000.0


def recorded(folder: Path, *, steps: int = 4, first: int = 0, slower: float = 1.0) -> Path:
    """A program of three ops a step, each with a kernel of its own, and one that runs once in a while."""
    events: list[traces.Event] = []
    for number in range(first, first + steps):
        at = STEP * slower * (number - first)
        events.append(traces.step(number, at, 900 * slower))
        for place, name in enumerate(("mm", "add", "relu", f"seldom_{number}" if number % 3 == 0 else "mul")):
            start, id = at + 100 * slower * (place + 1), 10 * number + place + 1
            events += [
                traces.host(f"aten::{name}", start, 50),
                traces.call("cudaLaunchKernel", start + 10, 5, id),
                traces.kernel(f"void {name}<4, float>(int)", start + 20 + number, 30, id),
            ]
    path = folder / f"{first}-{steps}-{slower}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def joined(run_of: Path, export: Path) -> tuple[Trace, JoinedExport]:
    (trace,) = load(run_of, export).traces
    account = trace.metadata[JOINED]
    assert isinstance(account, JoinedExport)
    return trace, account


def around(trace: Trace, name: str) -> list[str]:
    """The names around the launches of kernels of this op, from the inside out."""
    host = trace.host_events
    row = next(
        launch
        for launch, kernel in trace.device_events.select("launch", "name").iter_rows()
        if name in kernel
    )
    found: list[str] = []
    while row is not None:
        found.append(host["name"][row])
        row = host["parent"][row]
    return found[1:]


def test_ranges_enclose_the_same_launches_on_the_other_clock(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    ranges = [
        {"start": 5_000_000_000 + start * 1000, "end": 5_000_000_000 + end * 1000, "eventType": 59,
         "text": text, "globalTid": thread(1)}
        for text, start, end in (("layer", 190, 360), ("ProfilerStep#0", 0, 900))
    ]  # fmt: skip
    of_trace(read(path), tmp_path / "x.sqlite", shift_ns=5_000_000_000, ranges=ranges)
    trace, account = joined(path, tmp_path / "x.sqlite")
    assert account == JoinedExport("x.sqlite", 16, 16, 0, 1, 0)
    assert around(trace, "mm") == ["aten::mm", "ProfilerStep#0"]
    assert around(trace, "add") == ["aten::add", "layer", "ProfilerStep#0"]
    assert len(trace.steps) == 4
    assert trace.device_events["step"].to_list() == [row // 4 for row in range(16)]
    (note,) = (
        note for note in health(load(path, tmp_path / "x.sqlite")).notes if note.code == "joined-with-nsys"
    )
    assert "16 of 16 pieces of device work (100.0%)" in note.text
    shown = kinetoscope("report", path, tmp_path / "x.sqlite").stdout
    assert "joined with x.sqlite: 16 of 16 pieces" in " ".join(shown.split())


def test_another_run_that_was_recorded_for_longer_is_joined_where_it_is_the_same(tmp_path: Path) -> None:
    path = recorded(tmp_path, steps=4, first=3)
    longer = read(recorded(tmp_path, steps=12, slower=1.5))
    third = 1.5 * STEP * 3
    row = {"start": int((third + 140) * 1000), "end": int((third + 330) * 1000), "eventType": 59,
           "text": "attention", "globalTid": thread(1)}  # fmt: skip
    of_trace(longer, tmp_path / "x.sqlite", ranges=[row])
    trace, account = joined(path, tmp_path / "x.sqlite")
    assert (account.compared, account.matched, account.ranges) == (16, 16, 1)
    assert account.apart_ns > 10_000
    inside = trace.host_events.filter(trace.host_events["name"].cast(str) == "attention").row(0, named=True)
    assert around(trace, "mm")[-1] == "ProfilerStep#3"
    calls = trace.host_events.filter(trace.host_events["correlation"].is_not_null())["start_ns"]
    end = inside["start_ns"] + inside["duration_ns"]
    assert [at for at in calls if inside["start_ns"] <= at < end] == calls.sort().to_list()[:2]


@pytest.mark.parametrize("lost", ["rowid = 9", "rowid IN (3, 14, 15)", "rowid % 25 = 0"])
def test_what_one_of_both_has_lost_is_left_out_and_the_rest_is_joined(lost: str, tmp_path: Path) -> None:
    path = recorded(tmp_path, steps=40)
    plain = read(path)
    of_trace(plain, tmp_path / "x.sqlite", shift_ns=77)
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        gone = database.execute(f"DELETE FROM {KERNEL} WHERE {lost}").rowcount
    database.close()
    (export,) = read_export(tmp_path / "x.sqlite")
    found = aligned(plain, export)
    apart = plain.device_events["start_ns"].gather(found.rows) - export.device_events["start_ns"].gather(
        found.others
    )
    assert (found.compared, len(found.rows)) == (160 - gone, 160 - gone)
    assert apart.n_unique() == 1
    _, account = joined(path, tmp_path / "x.sqlite")
    assert (account.matched, account.apart_ns) == (160 - gone, 0)


def test_what_two_sequences_have_in_common_is_the_longest_of_all() -> None:
    draw = random.Random(3)
    for _ in range(200):
        ours, theirs = (draw.choices("abcd", k=draw.randrange(9)) for _ in range(2))
        found = _in_common(ours, theirs, 20)
        assert found is not None
        rows, others = found
        assert [ours[row] for row in rows] == [theirs[row] for row in others]
        assert rows == sorted(set(rows))
        assert others == sorted(set(others))
        used = max(rows, default=-1) + 1, max(others, default=-1) + 1
        assert _common(ours[: used[0]], theirs[: used[1]]) == len(rows)
    assert _in_common([*"abcdabcd"], [*"efghefgh"], 3) is None


def _common(ours: list[str], theirs: list[str]) -> int:
    if not ours or not theirs:
        return 0
    if ours[-1] == theirs[-1]:
        return 1 + _common(ours[:-1], theirs[:-1])
    return max(_common(ours[:-1], theirs), _common(ours, theirs[:-1]))


def test_the_export_of_another_program_is_left_out_and_said(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    other = tmp_path / "other.json"
    events = [traces.call("cudaLaunchKernel", 1, 1, 1), traces.kernel("void mm<4>(int)", 5, 1, 1)]
    events += [traces.call("cudaLaunchKernel", 9, 1, 2), traces.kernel("void conv<4>(int)", 15, 1, 2)]
    other.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    of_trace(read(other), tmp_path / "x.sqlite")
    run = load(path, tmp_path / "x.sqlite")
    assert JOINED not in run.traces[0].metadata
    assert "x.sqlite was not joined: 50% of its device work is that of a trace" in run.remarks[0]


@pytest.mark.parametrize("name", ["mm_64_warm_eager", "mm_4096_warm_compile_reduce-overhead"])
def test_the_pair_of_a_real_trace_says_the_same_and_adds_graph_nodes(
    name: str, tmp_path: Path, shared_data: Path
) -> None:
    path = shared_data / "h200" / f"{name}.json.gz"
    plain = read(path)
    of_trace(plain, tmp_path / "x.sqlite", shift_ns=77)
    trace, account = joined(path, tmp_path / "x.sqlite")
    launched = plain.device_events["launch"].is_not_null().sum()
    assert (account.compared, account.matched, account.apart_ns) == (launched, launched, 0)
    nodes = ["graph", "graph_node"]
    assert trace.device_events.drop(nodes).equals(plain.device_events.drop(nodes))
    assert trace.host_events.equals(plain.host_events)
    replayed = [
        launch is not None and "GraphLaunch" in plain.host_events["name"][launch]
        for launch in plain.device_events["launch"]
    ]
    kernels = [kind == "kernel" for kind in plain.device_events["kind"]]
    wanted = [a and b for a, b in zip(replayed, kernels, strict=True)]
    assert trace.device_events["graph_node"].is_not_null().to_list() == wanted
    assert account.graph_nodes == sum(wanted)
