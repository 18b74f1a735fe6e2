"""Busy, its parts and the window: their definitions on random small recordings, and on cases worked out by
hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.kernels.work import work_of_all
from kinetoscope.analysis.origins.sums import kernels
from kinetoscope.analysis.time.busy import busy, steps
from kinetoscope.sources.run import LoadedRun
from traces import Event, call, copy, host, kernel, step, trace

NAMES = {"compute": "sgemm_128", "communication": "ncclDevKernel_AllReduce_Sum"}
device_event = st.tuples(
    st.sampled_from(["compute", "communication", "copy"]),
    st.integers(0, 1),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(0, 15),
)
recording = st.tuples(st.lists(device_event, min_size=1, max_size=20), st.integers(0, 3))


def events(work: list[tuple[str, int, int, int, int]], step_count: int) -> list[Event]:
    made = [
        copy(ts, dur, device, stream)
        if part == "copy"
        else kernel(NAMES[part], ts, dur, device=device, stream=stream)
        for part, device, stream, ts, dur in work
    ]
    return [*made, host("aten::mm", 5, 70), *(step(i, 10 + 20 * i, 20) for i in range(step_count))]


def covered(work: list[tuple[str, int, int, int, int]], device: int, *parts: str) -> set[int]:
    """The microseconds that a device's work covers; events have whole microseconds here."""
    return {t for part, d, _, ts, dur in work if d == device and part in parts for t in range(ts, ts + dur)}


@settings(max_examples=8, deadline=None)
@given(recording)
def test_the_definitions_hold_on_any_recording(
    drawn: tuple[list[tuple[str, int, int, int, int]], int],
) -> None:
    work, step_count = drawn
    run = LoadedRun((trace(*events(work, step_count)),))
    rows = busy(run).to_dicts()
    start, length = rows[0]["window_start_ns"] // 1000, rows[0]["window_ns"] // 1000
    window = set(range(start, start + length))
    if step_count:  # where a step begins and ends is `periods`' matter: they tile the window
        assert steps(run)["duration_ns"].sum() == 1000 * length
    else:
        recorded = set(range(min(5, *(w[3] for w in work)), max(75, *(w[3] + w[4] for w in work))))
        assert window == recorded
    assert [row["device"] for row in rows] == sorted({w[1] for w in work})
    for row in rows:
        parts = {part: covered(work, row["device"], part) for part in ("compute", "copy", "communication")}
        everything = set[int]().union(*parts.values())
        assert row["window_ns"] == 1000 * len(window)
        assert row["busy_ns"] == 1000 * len(everything)
        for part, instants in parts.items():
            assert row[f"{part}_ns"] == 1000 * len(instants)
        assert row["exposed_communication_ns"] == 1000 * len(parts["communication"] - parts["compute"])
        assert row["busy_in_window_ns"] == 1000 * len(everything & window)
        assert row["idle_ns"] == 1000 * len(window - everything)
        assert row["device_time_ns"] == 1000 * sum(w[4] for w in work if w[1] == row["device"])
        assert row["device_events"] == sum(w[1] == row["device"] for w in work)
        assert row["kernel_launches"] == sum(w[1] == row["device"] and w[0] != "copy" for w in work)
    assert kernels(run, "category")["device_time_ns"].sum() == sum(row["device_time_ns"] for row in rows)
    for place, row in enumerate(rows := steps(run).to_dicts(), 1):
        inside = set(range(row["start_ns"] // 1000, (row["start_ns"] + row["duration_ns"]) // 1000))
        if place == len(rows):  # for an end that was not recorded, the window begins earlier
            inside |= set(range(start, rows[0]["start_ns"] // 1000))
        expected = sum(len(covered(work, d, "compute", "copy", "communication") & inside) for d in (0, 1))
        assert row["busy_ns"] == 1000 * expected


def test_ranks_are_told_apart_even_when_each_calls_its_device_0() -> None:
    ranks = [trace(step(0, 0, 100), kernel("gemm", 10, 10 * (rank + 1)), rank=rank) for rank in (0, 1)]
    rows = busy(LoadedRun(tuple(ranks))).select("rank", "device", "busy_ns", "window_ns").rows()
    assert rows == [(0, 0, 10_000, 100_000), (1, 0, 20_000, 100_000)]


def test_a_recording_without_device_work_has_no_device() -> None:
    run = LoadedRun((trace(host("aten::mm", 0, 10)),))
    assert busy(run).is_empty()
    assert steps(run).is_empty()
    assert kernels(run).is_empty()
    assert work_of_all(run).is_empty()


def test_the_profilers_own_span_is_not_part_of_the_window() -> None:
    own = host("PyTorch Profiler (0)", 0, 1000, "Trace")
    rows = busy(LoadedRun((trace(own, host("aten::mm", 100, 50), kernel("gemm", 120, 60)),)))
    assert rows["window_ns"].to_list() == [80_000]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cuLaunchKernelEx", True),
        ("cudaMemcpyAsync", True),
        ("cudaMemsetAsync", True),
        ("cudaGraphLaunch", True),
        ("hipLaunchKernel", True),
        ("hipModuleLaunchKernel", True),
        ("hipExtModuleLaunchKernel", True),
        ("hipMemcpyWithStream", True),
        ("hipGraphLaunch", True),
        ("cudaDeviceSynchronize", False),
        ("cudaLaunchHostFunc", False),
        ("cudaMalloc", False),
        ("cudaStreamIsCapturing", False),
    ],
)
def test_a_launch_without_device_work_is_counted(name: str, counts: bool) -> None:
    recorded = trace(
        call("cudaLaunchKernel", 0, 5, 1),
        kernel("gemm", 10, 10, correlation=1, device=3),
        call(name, 20, 5, 2),
    )
    row = busy(LoadedRun((recorded,))).to_dicts()[0]
    assert row["launches_without_kernel"] == int(counts)
    assert row["unattributed_kernels"] == 0


def test_a_launch_without_device_work_counts_where_its_thread_launched() -> None:
    def launches(tid: int, device: int, base: int) -> list[Event]:
        return [
            call("cudaLaunchKernel", base, 1, base, tid),
            kernel("gemm", base + 2, 1, correlation=base, device=device),
            call("cudaLaunchKernel", base + 5, 1, base + 5, tid),
        ]

    rows = busy(LoadedRun((trace(*launches(1, 0, 100), *launches(2, 1, 200), *launches(2, 1, 300)),)))
    assert rows.select("device", "launches_without_kernel").rows() == [(0, 1), (1, 2)]


def test_device_work_without_a_launch_is_counted() -> None:
    row: dict[str, Any] = busy(LoadedRun((trace(kernel("gemm", 10, 10, correlation=9)),))).to_dicts()[0]
    assert row["unattributed_kernels"] == 1
    assert row["launches_without_kernel"] == 0


def test_quantiles_are_what_their_docstring_says() -> None:
    run = LoadedRun((trace(*(kernel("gemm", 100 * i, i) for i in range(1, 11))),))
    row = kernels(run).to_dicts()[0]
    assert row["median_ns"] == 5500
    assert row["p90_ns"] == pytest.approx(9100)
    assert row["mean_ns"] == 5500
    assert kernels(run).filter(pl.col("kernel").cast(pl.String) == "gemm")["launches"].to_list() == [10]
