"""Device memory: peaks, turnover, the driver's calls."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.analysis.memory.traced import (
    allocator_calls,
    held_at_peak,
    memory_statistics,
    memory_timeline,
)
from kinetoscope.document.collect.memory import memory
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

Make = Callable[..., Trace]


def change(
    at: float, size: int, allocated: int | None, reserved: int | None, device_type: int = 1, block: int = 1
) -> dict[str, Any]:
    args = {"Device Type": device_type, "Device Id": 0, "Addr": block, "Bytes": size}
    if allocated is not None:
        args |= {"Total Allocated": allocated, "Total Reserved": reserved}
    return {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "cat": "cpu_instant_event",
        "pid": 1,
        "tid": 1,
        "ts": at,
        "args": args,
    }


def call(name: str, start: float, duration: float, category: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "args": {},
    }


def test_peaks_turnover_and_where(trace_of: Make) -> None:
    trace = trace_of(
        call("aten::linear", 0, 50, "cpu_op"), call("aten::empty", 18, 4, "cpu_op"),
        change(10, 100, 1100, 2000), change(20, 300, 1400, 2500), change(30, -100, 1300, 2500),
        change(5, 999, 5000, 5000, device_type=0),
    )  # fmt: skip
    row = memory_statistics(LoadedRun((trace,))).row(0, named=True)
    assert (row["peak_allocated"], row["peak_reserved"], row["peak_op"]) == (1400, 2500, "aten::empty")
    assert (row["first_allocated"], row["last_allocated"]) == (1100, 1300)
    assert (row["allocations"], row["releases"], row["allocated_bytes"]) == (2, 1, 400)


def test_what_is_held_at_the_peak_and_what_allocated_it(trace_of: Make) -> None:
    trace = trace_of(
        call("train.py(9): step", 0, 90, "python_function"),
        call("nn.Module: Linear_0", 5, 40, "python_function"),
        call("aten::linear", 10, 30, "cpu_op"), call("aten::empty", 11, 4, "cpu_op"),
        call("aten::relu", 50, 10, "cpu_op"),
        change(2, 7, 1007, 2000, block=1), change(12, 100, 1107, 2000, block=2),
        change(20, 30, 1137, 2000, block=3), change(25, -30, 1107, 2000, block=3),
        change(30, -500, 607, 2000, block=9), change(32, 40, 647, 2000, block=3),
        change(55, 900, 1547, 2000, block=4), change(70, -100, 1447, 2000, block=2),
    )  # fmt: skip
    assert held_at_peak(trace).rows() == [
        (0, "aten::relu", None, "train.py(9): step", 900, 1),
        (0, "aten::linear", "Linear_0", "train.py(9): step", 140, 2),
        (0, None, None, "train.py(9): step", 7, 1),
    ]
    (row,) = memory(LoadedRun((trace,)))
    assert row.held_from_before_bytes == 1547 - 900 - 140 - 7
    assert [held.bytes for held in row.held_at_peak] == [900, 140, 7]


def test_a_block_that_lives_at_the_peak_is_held_by_one_op_that_was_running(shared_data: Path) -> None:
    path = shared_data / "h200" / "llama_train_eager.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 1]
    blocks: dict[int, dict[str, Any]] = {}
    most, at_most = 0, list[dict[str, Any]]()
    for one in sorted(changes, key=lambda e: e["ts"]):
        if one["args"]["Bytes"] > 0:
            blocks[one["args"]["Addr"]] = one
        else:
            blocks.pop(one["args"]["Addr"], None)
        if one["args"]["Total Allocated"] > most:
            most, at_most = one["args"]["Total Allocated"], list(blocks.values())
    ops = [e for e in events if e.get("cat") == "cpu_op" and not e["name"].startswith("aten::empty")]
    expected: dict[str | None, tuple[int, int]] = {}
    for one in at_most:
        around = [
            op for op in ops if op["tid"] == one["tid"] and op["ts"] <= one["ts"] < op["ts"] + op["dur"]
        ]
        name = max(around, key=lambda op: (op["ts"], -op["dur"]))["name"] if around else None
        size, count = expected.get(name, (0, 0))
        expected[name] = size + one["args"]["Bytes"], count + 1
    found = held_at_peak(read(path)).select("op", "bytes", "allocations")
    assert {op: (size, count) for op, size, count in found.iter_rows()} == expected


def test_without_totals_it_is_the_sum_since_the_start(trace_of: Make) -> None:
    trace = trace_of(change(10, 100, None, None), change(20, 50, None, None), change(30, -100, None, None))
    assert memory_timeline(trace)["allocated"].to_list() == [100, 150, 50]
    assert memory_timeline(trace)["reserved"].null_count() == 3


def test_nothing_recorded_is_an_empty_table(trace_of: Make) -> None:
    run = LoadedRun((trace_of(call("aten::mm", 0, 5, "cpu_op")),))
    assert memory_statistics(run).is_empty()
    assert allocator_calls(run).is_empty()


def test_calls_of_the_allocator_within_a_step_are_listed(trace_of: Make) -> None:
    trace = trace_of(
        call("cudaMalloc", 0, 10, "cuda_runtime"), call("ProfilerStep#1", 20, 80, "user_annotation"),
        call("cudaMalloc", 30, 20, "cuda_runtime"), call("cudaFree", 60, 5, "cuda_runtime"),
        call("cudaLaunchKernel", 70, 5, "cuda_runtime"),
    )  # fmt: skip
    assert allocator_calls(LoadedRun((trace,))).rows() == [
        (0, "cudaMalloc", 2, 30_000, 1, 20_000),
        (0, "cudaFree", 1, 5_000, 1, 5_000),
    ]


def test_a_real_recording_against_its_events(shared_data: Path) -> None:
    path = shared_data / "h200/llama_train_eager.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    changes = [e["args"] for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == 1]
    row = memory_statistics(LoadedRun((read(path),))).row(0, named=True)
    assert row["peak_allocated"] == max(c["Total Allocated"] for c in changes)
    assert row["allocated_bytes"] == sum(c["Bytes"] for c in changes if c["Bytes"] > 0)
    assert row["peak_op"] == "aten::_log_softmax_backward_data"  # 32,000 logits a token, twice in fp32


@pytest.mark.parametrize(("name", "calls"), [("hipFree", 1360), ("hipMalloc", 1460)])
def test_a_real_program_whose_allocator_thrashes(shared_data: Path, name: str, calls: int) -> None:
    table = allocator_calls(LoadedRun((read(shared_data / "public/tl_mi300x_ddp_resnet18_train.json.gz"),)))
    rows = {row["name"]: row for row in table.iter_rows(named=True)}
    assert rows[name]["calls"] == calls
