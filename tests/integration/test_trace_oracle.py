"""Every shared recording against the exact interval arithmetic done on its raw events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("KINETOSCOPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
ORACLE = DATA / "oracle.jsonl"
TRUTHS: list[dict[str, Any]] = (
    [json.loads(line) for line in ORACLE.read_text().splitlines()] if ORACLE.is_file() else []
)
STEP = "ProfilerStep#"


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth["file"])
def test_a_recording_agrees_with_the_oracle(truth: dict[str, Any]) -> None:
    trace = read(DATA / truth["file"])
    device = trace.device_events
    assert trace.source.events == truth["events"]
    assert trace.source.complete
    assert trace.source.damages == ()
    for kind in ("kernel", "memcpy", "memset"):
        events = device.filter(pl.col("kind") == kind)
        assert len(events) == truth[f"n_{kind}"]
        assert events["duration_ns"].sum() == round(truth[f"sum_{kind}_us"] * 1000)
    assert sorted(device["stream"].unique().cast(pl.String)) == truth["streams"]
    assert device["launch"].null_count() == truth["gpu_events_without_launch"]
    kernels = device.filter(pl.col("kind") == "kernel")
    assert (kernels["duration_ns"] < 1000).sum() == truth["kernels_lt_1us"]
    assert (kernels["duration_ns"] < 2000).sum() == truth["kernels_lt_2us"]
    assert kernels["name"].n_unique() == truth["unique_kernels"]
    calls = trace.host_events.filter(
        pl.col("category").cast(pl.String).is_in(["cuda_runtime", "cuda_driver"])
    )
    assert len(calls) == truth["n_runtime"]
    assert sorted(set(trace.steps["name"])) == truth["steps"]
    _check_graph_launches(trace, truth)
    _check_devices(trace, truth)
    _check_top_kernels(kernels, truth)


def _check_graph_launches(trace: Trace, truth: dict[str, Any]) -> None:
    host = trace.host_events.with_columns(pl.col("name").cast(pl.String))
    graph_launches = host.filter(pl.col("name").str.contains("GraphLaunch"))
    kernels = trace.device_events.filter(pl.col("kind") == "kernel")
    assert len(graph_launches) == truth["graph_launches"]
    assert kernels["launch"].is_in(graph_launches["id"].implode()).sum() == truth["kernels_from_graph"]


def _check_devices(trace: Trace, truth: dict[str, Any]) -> None:
    ends = trace.device_events.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    spans = ends.group_by("device").agg(n=pl.len(), span=pl.col("end_ns").max() - pl.col("start_ns").min())
    found = {str(device): (n, span) for device, n, span in spans.iter_rows()}
    assert found.keys() == truth["devices"].keys()
    for device, facts in truth["devices"].items():
        count, span_ns = found[device]
        assert count == facts["n"]
        # The oracle subtracts doubles of microseconds, which are good to half a nanosecond each.
        assert abs(span_ns - facts["span_us"] * 1000) < 1.01


def _check_top_kernels(kernels: pl.DataFrame, truth: dict[str, Any]) -> None:
    totals = {
        name: (total, launches)
        for name, total, launches in kernels.group_by(pl.col("name").cast(pl.String))
        .agg(pl.col("duration_ns").sum(), pl.len())
        .iter_rows()
    }
    for prefix, total_us, launches in truth["top5"]:
        assert any(
            name.startswith(prefix) and found == (round(total_us * 1000), launches)
            for name, found in totals.items()
        )
