"""What only the page shows: packed events against their tables, generated code against the log."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traces
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.document import Report
from kinetoscope.document.collect import timeline
from kinetoscope.document.collect.report import build
from kinetoscope.document.collect.timeline import excerpt, packed
from kinetoscope.export import perfetto
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.captures import with_captures
from kinetoscope.views import page as html
from page_data import PageData, page_data
from page_reports import page_report

FIXTURES = Path(__file__).parents[2] / "fixtures"
BREAKS = FIXTURES / "h200_breaks"


def unpacked(column: Any) -> list[int]:
    """As the document describes it: planes of bytes, the lowest first; differences folded to be positive."""
    numbers = [
        sum(column.data[plane * column.length + row] << 8 * plane for plane in range(column.planes))
        for row in range(column.length)
    ]
    if not column.deltas:
        return numbers
    differences = [-(number + 1) // 2 if number % 2 else number // 2 for number in numbers]
    return [sum(differences[: row + 1]) for row in range(len(differences))]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**52), max_size=20), st.booleans())
def test_columns_hold_their_numbers(values: list[int], deltas: bool) -> None:
    column = packed("x", pl.Series(values, dtype=pl.Int64), deltas=deltas)
    assert unpacked(column) == values
    assert len(column.data) == column.length * column.planes


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return load(BREAKS / "breaks.log.gz", BREAKS / "breaks.json.gz")


@pytest.fixture(scope="module")
def report(run: LoadedRun) -> Report:
    return page_report(run)


@pytest.fixture(scope="module")
def data(report: Report) -> PageData:
    return page_data(html.render(report, ["breaks"]))


def test_what_a_capture_recorded_is_no_event_of_the_run() -> None:
    """It came minutes before: the page began with it, and the steps were a line at its end."""
    launch, work = traces.call("cudaGraphLaunch", 5, 1, 9), traces.kernel("gemm", 20, 5, 9)
    capture = [traces.call("cudaStreamBeginCapture", 1, 1, 0), traces.call("cudaStreamEndCapture", 90, 1, 0)]
    capture += [traces.host("aten::mm", 10, 5), traces.call("cudaLaunchKernel", 12, 1, 5000)]
    early = [one | {"ts": one["ts"] - 1e8} for one in capture]
    joined = with_captures(traces.trace(launch, work), [traces.trace(*early)])
    assert joined.host_events["name"].cast(str).to_list()[-1] == "aten::mm"
    found = timeline.timeline(LoadedRun((joined,)), [])
    assert found is not None
    assert (found.origin_ns, [lane.count for lane in found.lanes]) == (5000, [1, 1])
    exported = json.loads(perfetto.render(LoadedRun((joined,))))["traceEvents"]
    assert [one["name"] for one in exported if one["ph"] == "X"] == ["cudaGraphLaunch", "gemm"]


def test_events_are_those_of_the_tables(run: LoadedRun, data: PageData) -> None:
    (trace,) = run.traces
    found = data.report["page"]["timeline"]
    names = [(row["name"], row["kind"]) for row in found["names"]]
    of_lanes = [
        (lane["kind"], found["origin_ns"] + start, duration, *names[name])
        for lane in found["lanes"]
        for start, duration, name in zip(
            *(
                data.columns[key][lane["first"] : lane["first"] + lane["count"]]
                for key in ("start", "duration", "name")
            ),
            strict=True,
        )
    ]
    expected = [
        (kind, *row)
        for kind, table, category in (
            ("thread", trace.host_events, "category"),
            ("stream", trace.device_events, "kind"),
            ("annotation", trace.device_annotations, "category"),
        )
        for row in table.select("start_ns", "duration_ns", "name", category).iter_rows()
    ]
    assert sorted(of_lanes) == sorted(expected)
    for lane in found["lanes"]:
        rows = range(lane["first"], lane["first"] + lane["count"])
        order = [(data.columns["start"][row], -data.columns["duration"][row]) for row in rows]
        assert order == sorted(order)


def test_work_points_at_its_launch(run: LoadedRun, data: PageData) -> None:
    (trace,) = run.traces
    found, columns = data.report["page"]["timeline"], data.columns
    work = [
        row
        for lane in found["lanes"]
        if lane["kind"] == "stream"
        for row in range(lane["first"], lane["first"] + lane["count"])
    ]
    origin = found["origin_ns"]
    pairs = {
        (origin + columns["start"][row], origin + columns["start"][launch - 1] if launch else None)
        for row, launch in zip(work, columns["launch"], strict=True)
    }
    launched = trace.host_events["start_ns"].gather(trace.device_events["launch"])
    assert pairs == set(zip(trace.device_events["start_ns"], launched, strict=True))
    grids = [found["launched"][code].get("grid") for code in columns["launched"]]
    assert sorted(map(str, grids)) == sorted(map(str, trace.device_events["grid"]))


def test_idle_time_is_that_of_the_gaps(run: LoadedRun, data: PageData) -> None:
    found, columns = data.report["page"]["timeline"], data.columns
    rows = list(zip(columns["idle_start"], columns["idle_duration"], columns["idle_cause"], strict=True))
    table = gaps(run).sort("rank", "device", "start_ns")
    assert [(found["origin_ns"] + start, found["causes"][cause]) for start, _, cause in rows] == list(
        zip(table["start_ns"], table["cause"], strict=True)
    )
    assert sum(duration for _, duration, _ in rows) / 1000 == pytest.approx(
        sum(row["idle_us"] for row in data.report["idle"])
    )


def test_evidence_leads_to_its_events(run: LoadedRun, data: PageData) -> None:
    (trace,) = run.traces
    found, columns = data.report["page"]["timeline"], data.columns
    starts = dict(
        pl.concat(
            [t.select("event", "start_ns") for t in (trace.host_events, trace.device_events)]
        ).iter_rows()
    )
    pointing = [item for row in data.report["findings"] for item in row["evidence"]]
    pointing += (data.report["replay"] or {"critical_path": []})["critical_path"]
    events = {event for item in pointing for event in item["events"]}
    marks = {mark["event"]: found["origin_ns"] + columns["start"][mark["row"]] for mark in found["marks"]}
    assert marks == {event: starts[event] for event in events if event in starts}
    assert marks


def test_generated_code_is_the_logs(run: LoadedRun, report: Report) -> None:
    assert run.compilation is not None
    assert report.page
    assert {row.graph: row.code for row in report.page.modules} == {
        graph: text.read() for graph, text in run.compilation.modules.items()
    }
    for module in report.page.modules:
        lines = module.code.splitlines()
        for kernel in module.kernels:
            stretch = lines[kernel.first_line - 1 : kernel.last_line]
            assert sum(line.startswith(f"{kernel.name} = async_compile") for line in stretch) == 1
            assert sum(" = async_compile." in line for line in stretch) == 1
    kernels = [kernel.name for module in report.page.modules for kernel in module.kernels]
    assert sorted(kernels) == sorted(row.name for row in run.compilation.kernels)


def test_the_json_is_without_the_pages_own_data(run: LoadedRun) -> None:
    from kinetoscope.render.json import indented

    assert '"page"' not in indented(build(run))


def test_a_large_recording_keeps_what_fits(
    run: LoadedRun, data: PageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(data.columns["start"])
    monkeypatch.setattr(timeline, "MOST", whole // 2)
    cut = page_data(html.render(page_report(run), ["breaks"]))
    kept = len(cut.columns["start"])
    assert kept == whole // 2
    left_out = cut.report["page"]["timeline"]["left_out"]
    assert left_out.startswith(f"{whole - kept:,} of {whole:,} events are not drawn")
    assert max(data.columns["duration"]) in cut.columns["duration"]
    assert cut.report["kernels"] == data.report["kernels"]


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=60),
    steps=st.lists(st.integers(0, 100), max_size=6, unique=True),
    most=st.integers(2, 40),
)
@example(rows=[(0, 0), (0, 0), (0, 0), (1, 0), (1, 0)], steps=[], most=2)
def test_an_excerpt_has_whole_steps_and_the_longest_of_the_rest(
    rows: list[tuple[int, int]], steps: list[int], most: int
) -> None:
    events = pl.DataFrame(rows, schema={"start_ns": pl.Int64, "duration_ns": pl.Int64}, orient="row")
    kept, left_out = excerpt(events, pl.Series(steps, dtype=pl.Int64), most)
    assert len(kept) == min(most, len(rows))
    assert (left_out is None) == (len(rows) <= most)
    gone = Counter(rows) - Counter(kept.rows())
    whole = [
        (low, high)
        for low, high in pairwise(sorted(steps))
        if not any(low <= start < high for start, _ in gone)
    ]
    middle = (len(steps) - 1) // 2
    bounds = sorted(steps)[middle : middle + 2]
    if len(bounds) == 2 and sum(bounds[0] <= start < bounds[1] for start, _ in rows) <= most // 2:
        assert (bounds[0], bounds[1]) in whole
        # What is longer than something that is kept outside of whole steps is kept too.
        outside = [d for s, d in kept.rows() if not any(low <= s < high for low, high in whole)]
        assert not gone or not outside or max(d for _, d in gone) <= min(outside)


def test_the_newest_measurement_of_each_kernel_stands_for_it(tmp_path: Path) -> None:
    def kernel(name: str, median_ns: float) -> dict[str, Any]:
        measurement = {"name": name, "mode": "cold", "basis": "", "n": 5, "samples_ns": []}
        times = dict.fromkeys(("p10_ns", "p90_ns"), 1.0) | {"median_ns": median_ns}
        session = {
            "subjects": [measurement | times],
            "rounds": 5,
            "stopped": "settled",
            "seconds": 1,
            "seed": 0,
        }
        known = {"name": name, "category": "pointwise", "module": "m", "launches_per_run": 1, "arguments": []}
        return known | {"bytes": 1000, "registers": 24, "sessions": {"cold": session}}

    (tmp_path / "bench").mkdir()
    for stamp, kernels in (
        ("1", [kernel("a", 100.0), kernel("b", 7.0)]),
        ("2", [kernel("a", 50.0)]),
        ("3", None),
    ):
        text = msgspec.json.encode({"device": "NVIDIA H200", "torch": "2.11.0", "kernels": kernels})
        (tmp_path / "bench" / f"kernels-{stamp}.json").write_bytes(text)
    run = load(BREAKS / "breaks.json.gz")
    page = page_report(replace(run, folder=tmp_path)).page
    assert page
    assert {row.name: row.cold_ns for row in page.benches} == {"a": (1.0, 50.0, 1.0), "b": (1.0, 7.0, 1.0)}


def test_ranks_stand_below_each_other(shared_data: Path) -> None:
    folder = shared_data / "h200-dist"
    data = page_data(
        html.render(page_report(load(folder / "ddp_rank0.json.gz", folder / "ddp_rank1.json.gz")), ["ddp"])
    )
    lanes = data.report["page"]["timeline"]["lanes"]
    assert [rank for rank, _ in groupby(lane["rank"] for lane in lanes)] == [0, 1]
    assert [kind for kind, _ in groupby(lane["kind"] for lane in lanes)] == [
        "stream",
        "annotation",
        "thread",
    ] * 2
