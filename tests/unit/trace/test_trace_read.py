"""What producers write, one by one: names of 2021 and today, other vendors, exact times, every join."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinetoscope.trace import container, workers
from kinetoscope.trace import read as reading
from kinetoscope.trace.damage import described
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

TraceOf = Callable[..., Trace]


def span(
    cat: str, name: str, ts: float, dur: float, *, tid: Any = 1, pid: Any = 1, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return span("kernel", args.pop("name", "k"), ts, dur, pid=0, tid=7, **{"device": 0, "stream": 7, **args})


def names(trace: Trace, table: str, column: str = "name") -> list[str]:
    return trace.table(table)[column].cast(pl.String).to_list()


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("4368886024047.770", 4368886024047770),
        ("4458676522709.059", 4458676522709059),
        ("1694128201426556", 1694128201426556000),
        ("1694128201426556.123", 1694128201426556123),
        ("1694128201426556.1235", 1694128201426556124),
        ("1694128201426556.5", 1694128201426556500),
        ("1.694128201426556123e15", 1694128201426556123),
        ('"1694128201426556.123"', 1694128201426556123),
        ("0.001", 1),
        ("-5.25", -5250),
        ("0", 0),
    ],
)
def test_times_are_exact_nanoseconds(written: str, ns: int, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'[{{"ph":"X","name":"a","pid":1,"tid":1,"ts":{written},"dur":1.001}}]')
    events = read(path).host_events
    assert events["start_ns"].to_list() == [ns]
    assert events["duration_ns"].to_list() == [1001]


@pytest.mark.parametrize("slice_bytes", [200, 512 << 10])
def test_numbers_of_any_size_are_read_as_they_are(
    slice_bytes: int, trace_of: TraceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "IN_PROCESS", slice_bytes)
    monkeypatch.setenv("KINETOSCOPE_WORKERS", "1")
    ids = [0, 1, 127, -128, 40_000, 3_000_000_000, 1 << 40, (1 << 63) - 1]
    durations = [0, 1, 2_200_000, 5_000_000, 2_000_000, 1, 2, 3]
    events = [
        span("cpu_op", f"aten::{row}", 10**8 * row, us, **{"External id": number, "Sequence number": -number})
        for row, (number, us) in enumerate(zip(ids, durations, strict=True))
    ]
    trace = trace_of(*events, span("cpu_op", "aten::none", 10**9, 1), kernel(5, 3_000_000, stream=1 << 33))
    host = trace.host_events
    assert host["external_id"].to_list() == [*ids, None]
    assert host["sequence"].to_list() == [*(-number for number in ids), None]
    assert host["duration_ns"].to_list() == [1000 * us for us in [*durations, 1]]
    assert host["duration_ns"].sum() == 1000 * (sum(durations) + 1)
    assert host["event"].to_list() == list(range(9))
    assert trace.device_events.select("stream", "duration_ns", "event").row(0) == (1 << 33, 3 * 10**9, 9)


def test_the_names_of_2021_are_those_of_today(trace_of: TraceOf) -> None:
    trace = trace_of(
        span("Operator", "aten::mm", 10, 20, tid="1", **{"External id": 4}),
        span("Runtime", "cudaLaunchKernel", 12, 3, tid="1", correlation=9, **{"external id": 4}),
        span(
            "Kernel", "gemm", 30, 5, pid=0, tid="7", device=0, stream=7, correlation=9, **{"external id": 4}
        ),
        span("Memcpy", "HtoD", 40, 1, pid=0, tid="7", device=0, stream=7, correlation=10),
        span("Memset", "Memset", 42, 1, pid=0, tid="7", device=0, stream=7, correlation=11),
        span("PythonFunction", "f", 5, 60, tid="1"),
    )
    assert names(trace, "host_events", "category") == ["python_function", "cpu_op", "cuda_runtime"]
    assert trace.device_events["kind"].to_list() == ["kernel", "memcpy", "memset"]
    assert trace.device_events["launch"].to_list() == [2, None, None]
    assert trace.device_events["op"].to_list() == [1, None, None]
    assert trace.host_events["external_id"].to_list() == [None, 4, 4]


def test_steps_of_2021_are_ops(trace_of: TraceOf) -> None:
    trace = trace_of(span("Operator", "ProfilerStep#5", 0, 10), span("Operator", "aten::mm", 1, 2))
    assert trace.steps["name"].to_list() == ["ProfilerStep#5"]


def test_a_launch_is_found_by_flow_where_correlation_fails(trace_of: TraceOf) -> None:
    def flow(phase: str, tid: int, pid: int, ts: float) -> dict[str, Any]:
        return {
            "ph": phase,
            "id": 5,
            "cat": "async_cpu_to_gpu",
            "name": "x",
            "pid": pid,
            "tid": tid,
            "ts": ts,
        }

    trace = trace_of(
        span("cpu_op", "aten::mm", 0, 10),
        span("cuda_runtime", "cudaLaunchKernel", 2, 3),
        kernel(20, 5),
        kernel(30, 5),
        flow("s", 1, 1, 2),
        flow("f", 7, 0, 20),
    )
    assert trace.device_events["launch"].to_list() == [1, None]
    assert trace.device_events["op"].to_list() == [0, None]
    assert names(trace, "flows", "category") == ["ac2g", "ac2g"]


def test_an_op_is_found_by_external_id_where_nothing_encloses_the_launch(trace_of: TraceOf) -> None:
    trace = trace_of(
        span("cpu_op", "aten::mm", 0, 10, **{"External id": 3}),
        span("cuda_runtime", "cudaLaunchKernel", 8, 5, correlation=1, **{"External id": 3}),
        kernel(20, 5, correlation=1),
        kernel(30, 5, correlation=2, **{"External id": 3}),
    )
    assert trace.device_events["launch"].to_list() == [1, None]
    assert trace.device_events["op"].to_list() == [0, 0]


def test_python_functions_between_a_launch_and_its_op_are_passed_over(trace_of: TraceOf) -> None:
    trace = trace_of(
        span("cpu_op", "aten::mm", 0, 100),
        span("python_function", "f", 1, 90, **{"Python id": 1, "Python parent id": None}),
        span("python_function", "g", 2, 80, **{"Python id": 2, "Python parent id": 1, "Python module id": 0}),
        span("cuda_runtime", "cudaLaunchKernel", 3, 5, correlation=1),
        kernel(20, 5, correlation=1),
    )
    assert trace.device_events["op"].to_list() == [0]
    assert trace.host_events["python_parent_id"].to_list() == [None, None, 1, None]
    assert trace.host_events["python_module_id"].to_list() == [None, None, 0, None]


def test_one_graph_launch_serves_all_its_kernels(trace_of: TraceOf) -> None:
    nodes = [
        kernel(20 + 2 * n, 1, correlation=8, **{"graph id": 3, "graph node id": 100 + n}) for n in range(5)
    ]
    trace = trace_of(
        span("user_annotation", "ProfilerStep#1", 0, 15),
        span("cuda_runtime", "cudaGraphLaunch", 2, 5, correlation=8),
        *nodes,
    )
    assert trace.device_events["launch"].to_list() == [1] * 5
    assert trace.device_events["step"].to_list() == [0] * 5
    assert trace.device_events["graph"].to_list() == [3] * 5
    assert trace.device_events["graph_node"].to_list() == [100, 101, 102, 103, 104]


def test_ids_that_two_processes_share_join_to_the_last_call_before(trace_of: TraceOf) -> None:
    trace = trace_of(
        span("cuda_runtime", "cudaLaunchKernel", 0, 1, pid=1, correlation=1),
        span("cuda_runtime", "cudaLaunchKernel", 100, 1, pid=2, correlation=1),
        kernel(10, 5, correlation=1),
        kernel(110, 5, correlation=1),
        span("kernel", "k", -5, 1, pid=1, tid=7, device=1, stream=7, correlation=1),
    )
    assert trace.device_events["launch"].to_list() == [0, 1, 0]


def test_events_of_mtia_and_hip_devices_are_read(trace_of: TraceOf) -> None:
    trace = trace_of(
        span("mtia_runtime", "launch", 0, 1, correlation=1),
        span("mtia_ccp_events", "job", 2, 5, pid=3, tid=1, correlation=1),
        span("hip_runtime", "hipLaunchKernel", 4, 1, correlation=2),
        span("kernel", "hip", 6, 1, pid=2, tid=0, device=2, stream=0, correlation=2),
        span("cuda_sync", "Stream Sync", 6, 1, pid=0, tid=7),
        span("gpu_user_annotation", "step", 6, 1, pid=0, tid=7),
    )
    assert list(trace.device_events.select("device", "stream", "kind", "launch").iter_rows()) == [
        (2, 0, "kernel", 1),
        (3, 1, "kernel", 0),
    ]
    assert names(trace, "device_annotations", "category") == ["cuda_sync", "gpu_user_annotation"]
    assert trace.device_annotations["device"].to_list() == [0, 0]


def test_processes_and_threads_may_have_any_name_or_none(trace_of: TraceOf) -> None:
    label = {"ph": "M", "name": "process_name", "pid": "rank 0", "args": {"name": "python"}}
    event = {"ph": "X", "name": "x", "ts": 1, "dur": 2}
    trace = trace_of(label, {**event, "pid": "rank 0", "tid": "main"}, event, {**event, "pid": 7})
    assert trace.lanes.select("pid", "tid", "process_name").rows() == [
        ("rank 0", "main", "python"),
        ("", "", None),
        ("7", "", None),
    ]


def test_a_capture_of_the_device_alone(trace_of: TraceOf) -> None:
    trace = trace_of(kernel(1, 2, correlation=4), kernel(5, 2, correlation=5))
    assert trace.host_events.is_empty()
    assert trace.steps.is_empty()
    assert trace.device_events["launch"].null_count() == 2


def test_memory_events_and_marks(trace_of: TraceOf) -> None:
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 2**63 + 5, "Bytes": -512, "Total Allocated": 10}
    mark = {"ph": "i", "s": "g", "pid": "", "tid": "", "ts": 9}
    trace = trace_of(
        {**mark, "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "args": memory},
        {**mark, "name": "Record Window End"},
        {"ph": "C", "name": "counter", "ts": 3, "args": {"value": 1}},
    )
    assert trace.memory.select(
        "start_ns", "address", "bytes", "total_allocated", "total_reserved"
    ).rows() == [(9000, 2**63 + 5, -512, 10, None)]
    assert dict(trace.source.unused) == {"C": 1, "i": 1}


def test_recorded_arguments_are_kept(trace_of: TraceOf) -> None:
    trace = trace_of(
        span(
            "cpu_op",
            "aten::mm",
            0,
            10,
            **{"Input Dims": [[2, 3], []], "Input type": ["float", ""], "Call stack": "a;b"},
        ),
        span("cpu_op", "record_param_comms", 1, 2, **{"Collective name": "allreduce", "In msg nelems": 8}),
        kernel(
            3, 1, grid=[1, 2, 3], **{"registers per thread": 32, "blocks per SM": 0.5, "shared memory": 9}
        ),
    )
    op, comms = trace.table("host_events").to_dicts()
    assert json.loads(op["input_dims"]) == [[2, 3], []]
    assert op["call_stack"] == "a;b"
    assert op["collective"] is None
    assert json.loads(comms["collective"]) == {"Collective name": "allreduce", "In msg nelems": 8}
    row = trace.table("device_events").to_dicts()[0]
    assert (row["registers"], row["blocks_per_sm"], row["shared_memory_bytes"]) == (32, 0.5, 9)
    assert json.loads(row["grid"]) == [1, 2, 3]


def test_arguments_that_events_share_are_kept_once(trace_of: TraceOf) -> None:
    said = [[[2]], [[3]], [[2]]]
    ops = [span("cpu_op", "aten::add", 10 * at, 5, **{"Input Dims": dims}) for at, dims in enumerate(said)]
    trace = trace_of(*ops, span("cpu_op", "aten::empty", 40, 5))
    assert len(trace.host_arguments.drop_nulls("input_dims")) == 2
    assert trace.table("host_events")["input_dims"].to_list() == [*map(json.dumps, said), None]
    assert trace.argument("input_dims", 1) == "[[3]]"


def test_rank_and_devices_come_from_the_file(trace_of: TraceOf, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    event = {"ph": "X", "name": "x", "ts": 1, "dur": 2}
    device = {
        "id": 0,
        "name": "NVIDIA H200",
        "totalGlobalMem": 9,
        "computeMajor": 9,
        "computeMinor": 0,
        "numSms": 132,
    }
    document = {"distributedInfo": {"rank": 3}, "deviceProperties": [device, "junk"], "traceEvents": [event]}
    path.write_text(json.dumps(document))
    trace = read(path)
    assert trace.rank == 3
    assert read(path, rank=5).rank == 5
    assert [(d.index, d.name, d.compute_capability, d.multiprocessors) for d in trace.devices] == [
        (0, "NVIDIA H200", (9, 0), 132)
    ]


def many_events(count: int) -> list[dict[str, Any]]:
    return [
        event
        for n in range(count)
        for event in (
            span(
                "cpu_op", f"op{n % 7}", 100 * n, 50, tid=n % 3, **{"External id": n, "Input Dims": [[n % 5]]}
            ),
            span("cuda_runtime", "cudaLaunchKernel", 100 * n + 1, 5, tid=n % 3, correlation=n + 1),
            kernel(100 * n + 60, 30.5, name=f"kernel{n % 11}", correlation=n + 1),
        )
    ]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"traceEvents": many_events(3000), "traceName": "many"}, indent=2))
    return path


def same(one: Trace, other: Trace) -> bool:
    tables = ("lanes", "host_events", "device_events", "steps", "flows", "device_annotations", "memory")
    return all(one.table(name).equals(other.table(name)) for name in tables)


def test_processes_give_what_one_gives(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read(many)
    monkeypatch.setattr(reading, "IN_PROCESS", 1)
    monkeypatch.setattr(container.FileSupply, "span", 1 << 16)
    monkeypatch.setenv("KINETOSCOPE_WORKERS", "2")
    assert same(read(many), alone)


def test_a_process_that_dies_costs_nothing(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read(many)
    monkeypatch.setattr(reading, "IN_PROCESS", 1)
    monkeypatch.setattr(container.FileSupply, "span", 1 << 16)
    monkeypatch.setenv("KINETOSCOPE_WORKERS", "2")
    monkeypatch.setattr(workers, "program", lambda: "raise SystemExit(1)")
    assert same(read(many), alone)


def test_decoding_processes_load_their_own_folder_msgspec_and_the_standard_library() -> None:
    loads = workers.program().removesuffix("serve()") + "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", loads], capture_output=True, text=True, check=True
    )
    others = {name for name in done.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names}
    others -= {"__main__", "typing_extensions"}  # msgspec brings the second
    assert {name for name in others if not name.startswith(("msgspec", "kinetoscope.trace.decoding"))} == {
        "kinetoscope",
        "kinetoscope.trace",
    }


def test_one_event_that_was_damaged_is_said_in_the_singular() -> None:
    texts = {damage.code: damage.text for damage in described({"bad-event": 1, "missing-time": 1})}
    assert texts["bad-event"] == "1 event could not be read and is left out"
    assert texts["missing-time"] == "1 event has no time and is left out"
    (two,) = described({"missing-duration": 2})
    assert two.text == "2 events have no duration; it is taken as zero"
