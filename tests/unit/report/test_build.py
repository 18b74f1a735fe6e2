"""The report's JSON has every key of its contract, whatever the recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from msgspec.structs import replace

from contract import CONTRACT
from kinetoscope import document
from kinetoscope.analysis.idle.launches import launches
from kinetoscope.document.collect import report as report_of
from kinetoscope.document.collect.report import build
from kinetoscope.recording import manifest
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.model import Trace
from traces import host, kernel, nothing, step, trace


def as_json(run: LoadedRun) -> dict[str, Any]:
    return json.loads(msgspec.json.encode(build(run)))


@pytest.mark.parametrize(
    "name", ["mm_64_warm_eager", "forum_noreturn_second", "mm_4096_warm_compile_max-autotune"]
)
def test_the_json_has_every_key_of_the_contract(name: str, recorded: Callable[[str], Path]) -> None:
    report = as_json(load(recorded(f"h200/{name}.json.gz")))
    assert report["schema"] == "kinetoscope.report/1"
    for part, keys in CONTRACT.items():
        rows = [report] if part == "" else report[part]
        for row in rows:
            assert set(keys.split()) <= set(row), part
    for row in report["kernels"]:
        for op in row["ops"]:
            assert set(op) == {"name", "launches", "device_time_us"}
    assert set(report["health"]) == {"verdict", "notes"}
    assert report["health"]["verdict"] in ("good", "degraded", "unreliable")
    for note in report["health"]["notes"]:
        assert {"code", "text", "share_of_device_time"} <= set(note)
    times = [row["device_time_us"] for row in report["kernels"]]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", ["h200/mm_4096_warm_compile_max-autotune.json.gz", "h200-dist"])
def test_the_report_of_many_events_is_that_of_few_and_what_is_large_in_it_is_let_go(
    name: str, recorded: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded(name)
    paths = sorted(path.glob("ddp_straggler*")) if path.is_dir() else [path]
    few = build(load(*paths))
    monkeypatch.setattr(report_of, "LARGE", 0)
    monkeypatch.setattr(report_of, "FEW", pl.thread_pool_size())
    run = replace(
        load(*paths), traces=tuple(map(replace, load(*paths).traces))
    )  # nothing is remembered of it
    assert build(run) == few
    asked: list[Trace] = []
    monkeypatch.setattr(launches, "_analysis", asked.append)
    for one in run.traces:
        launches(one)
    assert asked == list(run.traces)


def test_times_of_a_known_recording_are_what_its_file_says(recorded: Callable[[str], Path]) -> None:
    report = as_json(load(recorded("h200/mm_64_warm_eager.json.gz")))
    assert report["environment"]["device_names"] == ["NVIDIA H200"]
    device = report["devices"][0]
    assert device["name"] == "NVIDIA H200"
    # From the file: the steps begin at …437039.676 and end at …437223.299 + 47.147; six kernels, 8.288 µs.
    assert device["window_us"] == pytest.approx(230.77)
    assert device["busy_us"] == pytest.approx(8.288)
    assert device["busy_fraction"] == pytest.approx(8.288 / 230.77)
    assert [row["name"] for row in report["steps"]] == [f"ProfilerStep#{n}" for n in (2, 3, 4)]
    # By the device's clock the first begins 27.32 µs after its mark, as soon as any step's first work does.
    assert report["steps"][0]["start_us"] == pytest.approx(4368634437039.676 + 27.32)
    assert sum(row["duration_us"] for row in report["steps"]) == pytest.approx(230.77)
    assert report["steps"][2]["host_duration_us"] == pytest.approx(47.147)
    matmul = report["kernels"][0]
    assert (matmul["name"], matmul["category"], matmul["launches"]) == (
        "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_NNT",
        "matmul",
        3,
    )
    assert matmul["ops"] == [{"name": "aten::mm", "launches": 3, "device_time_us": 5.76}]


def test_the_environment_leaves_nothing_of_the_manifests_out() -> None:
    assert set(manifest.Environment.__struct_fields__) <= set(document.EnvironmentRow.__struct_fields__)


def test_a_compiled_graph_has_its_row(recorded: Callable[[str], Path]) -> None:
    report = as_json(load(recorded("h200/mm_4096_warm_compile_max-autotune.json.gz")))
    (graph,) = report["graphs"]
    assert (graph["compile_id"], graph["direction"], graph["calls"]) == ("0/0", "inference", 3)
    assert graph["share_of_device_time"] == pytest.approx(1)
    assert {kernel["graph"] for kernel in report["kernels"]} == {graph["graph"]}


def test_a_recording_of_host_work_alone_makes_a_report() -> None:
    report = as_json(LoadedRun((trace(host("aten::mm", 0, 10)),)))
    assert report["devices"] == report["kernels"] == report["categories"] == report["idle"] == []
    assert [row["name"] for row in report["ops"]] == ["aten::mm"]


def test_a_category_has_no_more_of_the_window_than_lies_in_it() -> None:
    recorded = trace(step(1, 0, 100), kernel("ampere_sgemm", 80, 40), kernel("ampere_sgemm", 500, 10))
    report = as_json(LoadedRun((recorded,)))
    (category,) = report["categories"]
    assert (category["category"], category["launches"], category["distinct_kernels"]) == ("matmul", 2, 1)
    assert category["device_time_us"] == 50
    assert category["share_of_window"] == pytest.approx(0.4)
    assert report["devices"][0]["busy_fraction"] == pytest.approx(0.4)


def test_an_empty_trace_makes_a_report() -> None:
    report = as_json(LoadedRun((nothing(),)))
    assert (
        report["devices"] == report["kernels"] == report["steps"] == report["ops"] == report["graphs"] == []
    )
