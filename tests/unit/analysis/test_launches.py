"""What launches cost and how far ahead of the device they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinetoscope.analysis.idle.launches import arrival_ns, launch_statistics, launches, queue_depth
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

Make = Callable[..., Trace]
Event = dict[str, Any]


def launch(correlation: int, start: float, duration: float = 4, name: str = "cudaLaunchKernel") -> Event:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(correlation: int, start: float, duration: float) -> Event:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start, "dur": duration,
            "args": {"device": 0, "stream": 7, "correlation": correlation}}  # fmt: skip


@pytest.fixture
def trace(trace_of: Make) -> Trace:
    """Three launches ahead of the device, a pause, then one graph launch with two kernels."""
    return trace_of(
        launch(1, 0), launch(2, 10), launch(3, 20),
        kernel(1, 6, 30), kernel(2, 37, 30), kernel(3, 68, 2),
        launch(4, 100, 8, "cudaGraphLaunch"), kernel(4, 120, 3), kernel(4, 124, 4),
        launch(99, 200),
    )  # fmt: skip


def test_each_launch_has_its_latency_and_queue_depth(trace: Trace) -> None:
    table = launches(trace)
    assert table["latency_ns"].to_list() == [6_000, 27_000, 48_000, 20_000]
    assert table["depth"].to_list() == [1, 2, 3, 1]
    assert table["works"].to_list() == [1, 1, 1, 2]
    assert table["device_ns"].to_list() == [30_000, 30_000, 2_000, 7_000]


def test_launches_of_a_step_are_summed_up(trace: Trace) -> None:
    row = launch_statistics(LoadedRun((trace,))).row(0, named=True)
    assert (row["launches"], row["on_idle_device"], row["depth_max"]) == (4, 2, 3)
    assert row["shorter_than_call"] == 2  # the third, and the graph
    assert row["latency_median_ns"] == 23_500
    assert row["host_ns_per_launch"] == 10_000  # 10, 10 and 80 µs apart
    assert row["launches_per_step"] is None


@pytest.mark.parametrize(
    "name", ["llama_train_compile", "mixnet_l_backward_module", "mixnet_l_train_bs128_compile"]
)
def test_arrival_is_what_quick_launches_take_to_an_idle_device(shared_data: Path, name: str) -> None:
    trace = read(shared_data / f"h200/{name}.json.gz")
    idle = launches(trace).filter((pl.col("depth") == 1) & (pl.col("latency_ns") > 0))["latency_ns"]
    assert len(idle) > 100
    assert abs(arrival_ns(trace) - float(idle.quantile(0.1) or 0)) < 2_000


@pytest.mark.parametrize("name", ["h200/llama_train_compile", "public/tl_mi300x_ddp_resnet18_train"])
def test_depth_against_a_count(shared_data: Path, name: str) -> None:
    trace = read(shared_data / f"{name}.json.gz")
    table = launches(trace)
    starts, ends = table["start_ns"].to_list(), table["last_end_ns"].to_list()
    for i, depth in enumerate(table["depth"]):
        assert depth == 1 + sum(1 for j in range(i) if ends[j] > starts[i])
    curve = queue_depth(trace, points=10)
    within = window(trace)
    inside = table.filter(pl.col("start_ns").is_between(within.start_ns, within.end_ns, "left"))
    assert curve["launches"].sum() == len(inside)
    assert curve["depth_max"].max() == inside["depth"].max()
