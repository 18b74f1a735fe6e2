"""Every figure of the report against exact arithmetic on the raw events."""

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
import pytest

from kinetoscope.analysis.kernels.work import categories
from kinetoscope.document import Report
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import Run
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
class Recording:
    name: str
    path: Path
    trace: Trace
    report: Report


@pytest.fixture(scope="module", params=TRACES)
def recording(request: pytest.FixtureRequest, recorded: Callable[[str], Path]) -> Recording:
    path = recorded(request.param)
    trace = read(path)
    return Recording(request.param, path, trace, build(Run((trace,))))


def oracle(path: Path) -> dict[str, dict[str, Any]]:
    return {row["file"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_every_trace_of_the_oracle_is_checked(shared_data: Path) -> None:
    checked = [name for name in TRACES if (shared_data / name).is_file()]  # skipped where not all are here
    assert sorted(oracle(shared_data / "oracle.jsonl")) == sorted(checked)


def test_counts_sums_span_and_busy_agree_with_the_oracle(recording: Recording) -> None:
    # The oracle lies beside the folder (h200, …) that the trace is in.
    folder = recording.path.parents[len(Path(recording.name).parts) - 1]
    truth = oracle(folder / "oracle.jsonl")[recording.name]
    report = recording.report
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
