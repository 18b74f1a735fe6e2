"""Traces as they are read, and the figures of reports, against exact arithmetic on the raw events."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from kinetoscope.analysis.kernels.work import categories
from kinetoscope.document import CategoryRow, DeviceRow, GraphRow, KernelRow, StepRow
from kinetoscope.document.collect import devices, kernels, steps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.engines import engine_step
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

TRACES = [
    "h200/densenet121_infer_bs1_compile.json.gz",
    "h200/forum_eager.json.gz",
    "h200/forum_noreturn_first.json.gz",
    "h200/forum_noreturn_second.json.gz",
    "h200/forum_return_first.json.gz",
    "h200/forum_return_second.json.gz",
    "h200/llama_generate_eager.json.gz",
    "h200/llama_train_compile.json.gz",
    "h200/llama_train_eager.json.gz",
    "h200/llama_train_eager_stack.json.gz",
    "h200/mixnet_l_backward_module.json.gz",
    "h200/mixnet_l_train_bs128_compile.json.gz",
    "h200/mm_4096_warm_compile.json.gz",
    "h200/mm_4096_warm_compile_max-autotune.json.gz",
    "h200/mm_4096_warm_compile_reduce-overhead.json.gz",
    "h200/mm_4096_warm_eager.json.gz",
    "h200/mm_64_b8_warm_eager.json.gz",
    "h200/mm_64_cold_eager.json.gz",
    "h200/mm_64_warm_eager.json.gz",
    "h200-dist/ddp_rank0.json.gz",
    "h200-dist/ddp_rank1.json.gz",
    "h200-dist/ddp_straggler_rank0.json.gz",
    "h200-dist/ddp_straggler_rank1.json.gz",
    "h200-dist/fsdp_rank0.json.gz",
    "h200-dist/fsdp_rank1.json.gz",
    "public/hta_a100_ws2_rank0_nccl_metadata.json.gz",
    "public/hta_mi250_minitoy_rocm62.json.gz",
    "public/kineto_v100_resnet50_2021schema.json.gz",
    *(f"public/param_v100_dlrm_8rank/rank{rank}.json.gz" for rank in range(8)),
    "public/tl_mi300x_ddp_resnet18_train.json.gz",
    "public/tl_mi300x_sglang_qwen3_decode_hipgraph.json.gz",
    "public/tl_mi300x_torch_compile_tiny.json.gz",
]
DEVICE_CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"} | {
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
}


class RawEvent(msgspec.Struct):
    ph: str
    cat: str | None = None
    name: str = ""
    dur: float = 0.0


class File(msgspec.Struct):
    traceEvents: list[RawEvent]


@dataclass(frozen=True)
class Figures:
    """What a report says of the device's work: all else in it takes much longer."""

    devices: list[DeviceRow]
    categories: list[CategoryRow]
    kernels: list[KernelRow]
    steps: list[StepRow]
    graphs: list[GraphRow]


@dataclass(frozen=True)
class Recording:
    path: Path
    truth: dict[str, Any]
    trace: Trace
    report: Figures


@pytest.fixture(scope="module", params=TRACES)
def recording(request: pytest.FixtureRequest, recorded: Callable[[str], Path]) -> Recording:
    path = recorded(request.param)
    # The oracle lies beside the folder (h200, …) that the trace is in.
    folder = path.parents[len(Path(request.param).parts) - 1]
    trace = read(path)
    run = LoadedRun((trace,))
    report = Figures(
        devices.devices(run),
        kernels.categories(run),
        kernels.kernels(run),
        steps.steps(run),
        kernels.graphs(run),
    )
    return Recording(path, oracle(folder / "oracle.jsonl")[request.param], trace, report)


def oracle(path: Path) -> dict[str, dict[str, Any]]:
    return {row["file"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_every_trace_of_the_oracle_is_checked(shared_data: Path) -> None:
    checked = [name for name in TRACES if (shared_data / name).is_file()]  # skipped where not all are here
    assert sorted(oracle(shared_data / "oracle.jsonl")) == sorted(checked)


def test_a_trace_has_the_events_of_its_file(recording: Recording) -> None:
    trace, truth = recording.trace, recording.truth
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
    assert sorted({name for name in trace.steps["name"] if engine_step(name) is None}) == truth["steps"]
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


def test_counts_sums_span_and_busy_agree_with_the_oracle(recording: Recording) -> None:
    truth, report = recording.truth, recording.report
    counted = sum(truth[f"n_{kind}"] for kind in ("kernel", "memcpy", "memset"))
    summed = sum(truth[f"sum_{kind}_us"] for kind in ("kernel", "memcpy", "memset"))
    near = 0.001 * max(counted, 1)
    assert sum(device.kernel_launches for device in report.devices) == truth["n_kernel"]
    assert sum(device.device_events for device in report.devices) == counted
    assert sum(device.device_time_us for device in report.devices) == pytest.approx(summed, abs=near)
    assert sum(device.unattributed_kernels for device in report.devices) == truth["gpu_events_without_launch"]
    assert {str(device.device) for device in report.devices} == set(truth["devices"])
    for device in report.devices:
        expected = truth["devices"][str(device.device)]
        assert device.device_events == expected["n"]
        assert device.span_us == pytest.approx(expected["span_us"], abs=0.001 * expected["n"])
        assert device.busy_us == pytest.approx(expected["busy_us"], abs=0.001 * expected["n"])
        assert 100 * device.busy_fraction_of_span == pytest.approx(expected["busy_pct"], abs=0.01)
    assert sorted(step.name for step in report.steps) == sorted(truth["steps"])
    for kind in ("kernel", "memcpy", "memset"):
        rows = [row for row in report.kernels if row.kind == kind]
        assert sum(row.launches for row in rows) == truth[f"n_{kind}"]
        assert sum(row.device_time_us for row in rows) == pytest.approx(truth[f"sum_{kind}_us"], abs=near)
    for name, time_us, launches in truth["top5"]:  # names are cut there
        assert any(
            row.name.startswith(name)
            and row.launches == launches
            and row.device_time_us == pytest.approx(time_us, abs=0.001 * launches)
            for row in report.kernels
        )
    kernels = {row.name for row in report.kernels if row.kind == "kernel"}
    assert len(kernels) == truth["unique_kernels"]
    communication = [row for row in report.categories if row.category == "communication"]
    assert sum(row.launches for row in communication) == truth["n_nccl"]
    assert sum(row.device_time_us for row in communication) == pytest.approx(truth["sum_nccl_us"], abs=near)


def test_kernels_equal_brute_force_over_the_file(recording: Recording) -> None:
    report = recording.report
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    document = msgspec.json.decode(gzip.decompress(recording.path.read_bytes()), type=File)
    for event in document.traceEvents:
        if event.ph == "X" and event.cat in DEVICE_CATEGORIES:
            durations[event.name, DEVICE_CATEGORIES[event.cat]].append(event.dur)
    assert {(row.name, row.kind) for row in report.kernels} == set(durations)
    total = sum(sum(times) for times in durations.values())
    for row in report.kernels:
        times = durations[row.name, row.kind]
        assert row.launches == len(times)
        assert row.device_time_us == pytest.approx(sum(times), abs=0.001 * len(times))
        assert row.share_of_device_time == pytest.approx(sum(times) / total, abs=1e-6)
        assert row.mean_us == pytest.approx(statistics.fmean(times), abs=0.001)
        assert row.median_us == pytest.approx(statistics.median(times), abs=0.001)
        assert row.min_us == pytest.approx(min(times), abs=0.001)
        assert row.max_us == pytest.approx(max(times), abs=0.001)
        if len(times) > 1:
            p90 = statistics.quantiles(times, n=10, method="inclusive")[-1]
            assert row.p90_us == pytest.approx(p90, abs=0.001)
        assert sum(op.launches for op in row.ops) == row.launches
        assert sum(op.device_time_us for op in row.ops) == pytest.approx(row.device_time_us)


def test_parts_add_up(recording: Recording) -> None:
    report = recording.report
    for device in report.devices:
        assert 0 <= device.busy_fraction <= 1
        assert device.busy_fraction * device.window_us + device.idle_us == pytest.approx(device.window_us)
        assert device.exposed_communication_us <= device.communication_us + 1e-9
        parts = device.compute_us + device.copy_us + device.communication_us
        assert device.busy_us <= parts + 1e-6
        assert max(device.compute_us, device.copy_us, device.communication_us) <= device.busy_us + 1e-9
    whole = sum(device.device_time_us for device in report.devices)
    assert sum(row.device_time_us for row in report.categories) == pytest.approx(whole)
    assert sum(row.device_time_us for row in report.kernels) == pytest.approx(whole)
    if report.categories:
        assert sum(row.share_of_device_time for row in report.categories) == pytest.approx(1)
    for graph in report.graphs:
        assert sum(row.device_time_us for row in graph.categories) == pytest.approx(graph.device_time_us)


def test_less_than_one_percent_is_other(recording: Recording) -> None:
    trace, report = recording.trace, recording.report
    shares = {row.category: row.share_of_device_time for row in report.categories}
    assert shares.get("other", 0) < 0.01
    assert len(categories(trace)) == len(trace.device_events)
