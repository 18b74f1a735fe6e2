"""Exports of Nsight Systems become traces: each kind of row, several processes, steps, what is absent."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from kinetoscope.analysis.collectives.recorded import collectives
from kinetoscope.analysis.health.verdict import health
from kinetoscope.analysis.serving.steps import marks
from kinetoscope.analysis.time.window import periods
from kinetoscope.document.collect.kernels import listing
from kinetoscope.errors import NotATraceError
from kinetoscope.sources.run import load
from kinetoscope.trace.model import Trace
from kinetoscope.trace.nsys import read
from nsys_exports import (
    CALL,
    COPY,
    DEVICE,
    FIELDS,
    GPU,
    GRAPH,
    KERNEL,
    MEMSET,
    PID,
    RANGE,
    TEXT,
    WAIT,
    Names,
    Row,
    process,
    thread,
    write,
)

MS = 1_000_000


class Program:
    """A process's rows, added call by call; times in ms."""

    def __init__(self, names: Names, pid: int = PID, device: int = 0) -> None:
        self.pid, self.device, self._names = pid, device, names
        self.calls: list[Row] = []
        self.kernels: list[Row] = []
        self.ranges: list[Row] = []

    def launch(self, at: float, kernel: str, lasts: float = 1.0, **more: int) -> None:
        correlation = 1 + len(self.calls)
        self.calls.append(
            {
                "start": int(at * MS), "end": int((at + 0.1) * MS), "globalTid": thread(1, self.pid),
                "correlationId": correlation, "eventClass": 0,
                "nameId": self._names("cudaLaunchKernel_v7000"),
            }
        )  # fmt: skip
        self.kernels.append(
            self.work(at + 0.2, lasts, correlation, demangledName=self._names(kernel), **more)
        )

    def work(self, at: float, lasts: float, correlation: int, **more: int) -> Row:
        return {
            "start": int(at * MS), "end": int((at + lasts) * MS), "deviceId": self.device, "contextId": 1,
            "streamId": 7, "correlationId": correlation, "globalPid": process(self.pid), **more,
        }  # fmt: skip

    def range(self, text: str, start: float, end: float | None, kind: int = 59, **more: int) -> None:
        over = None if end is None else int(end * MS)
        row: Row = {"start": int(start * MS), "end": over, "eventType": kind, "text": text}
        self.ranges.append({**row, "globalTid": thread(1, self.pid), **more})

    def rows(self) -> dict[str, list[Row]]:
        return {KERNEL: self.kernels, CALL: self.calls, RANGE: self.ranges}


def one(path: Path) -> Trace:
    (trace,) = read(path)
    return trace


def host(trace: Trace) -> list[tuple[str, str]]:
    return [(row["category"], row["name"]) for row in trace.host_events.iter_rows(named=True)]


def test_work_is_named_and_placed_as_kineto_does(tmp_path: Path) -> None:
    names, tables = Names(), dict[str, list[Row]]()
    program = Program(names)
    spelled = "void at::native::<unnamed>::f<(int)4, (bool)1, std::array<char *, (unsigned long)3>>(int, T2)"
    sizes = {
        f"{of}{axis}": n for n, (of, axis) in enumerate((o, a) for o in ("grid", "block") for a in "XYZ")
    }
    program.launch(
        1, spelled, registersPerThread=40, staticSharedMemory=16, dynamicSharedMemory=1024, **sizes,
        graphNodeId=3 << 32 | 9,
    )  # fmt: skip
    tables |= program.rows()
    tables[COPY] = [program.work(3, 1, 5, bytes=4096, copyKind=1, srcKind=1, dstKind=2)]
    tables[MEMSET] = [program.work(5, 1, 6, bytes=8, memKind=2)]
    tables[WAIT] = [program.work(6, 1, 7, syncType=3)]
    trace = one(write(tmp_path / "x.sqlite", {**tables, TEXT: names.rows()}))
    kernel, copy, memset = trace.device_events.iter_rows(named=True)
    assert kernel["name"] == (
        "void at::native::(anonymous namespace)::f<4, true, std::array<char*, 3ul>>(int, T2)"
    )
    assert (kernel["grid"], kernel["block"]) == ("[0, 1, 2]", "[3, 4, 5]")
    assert (kernel["registers"], kernel["shared_memory_bytes"]) == (40, 1040)
    assert (kernel["graph"], kernel["graph_node"]) == (3, 3 << 32 | 9)
    assert (kernel["start_ns"], kernel["duration_ns"]) == (1.2 * MS, MS)
    assert (copy["kind"], copy["name"], copy["bytes"]) == ("memcpy", "Memcpy HtoD (Pinned -> Device)", 4096)
    assert (memset["kind"], memset["name"], memset["bytes"]) == ("memset", "Memset (Device)", 8)
    assert trace.device_annotations.select("category", "name").row(0) == ("cuda_sync", "Stream Sync")
    assert host(trace)[kernel["launch"]] == ("cuda_runtime", "cudaLaunchKernel")


def test_ranges_of_emit_nvtx_are_ops(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    program.range("aten::add, seq = 12, op_id = 4, sizes = [[2, 3], []], input_op_ids = [(3,0)]", 1, 2)
    program.range("Optimizer.step#SGD.step, op_id = 5", 3, 4)
    program.range("layer 0", 5, 6)
    program.range("ncclAllReduce", 7, 8)
    program.range("a mark", 9, 9, kind=34)
    program.range("of two threads", 9, 10, kind=60, endGlobalTid=thread(2))
    program.launch(1.5, "k")
    trace = one(write(tmp_path / "x.sqlite", {**program.rows(), TEXT: names.rows()}))
    ranges = [event for event in host(trace) if event[0] != "cuda_runtime"]
    assert ranges == [
        ("cpu_op", "aten::add"),
        ("user_annotation", "Optimizer.step#SGD.step"),
        ("user_annotation", "layer 0"),
        ("nvtx", "ncclAllReduce"),
    ]
    add = trace.table("host_events").row(0, named=True)
    assert (add["sequence"], add["external_id"], add["input_dims"]) == (12, 4, "[[2, 3], []]")
    assert host(trace)[trace.device_events["op"][0]] == ("cpu_op", "aten::add")


def test_payloads_of_nccl_are_what_its_collectives_moved(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    fields: list[Row] = [
        {"domainId": 1, "schemaId": 77, "idx": 0, "type": 18, "name": "NCCL communicator ID"},
        {"domainId": 1, "schemaId": 77, "idx": 1, "type": 22, "name": "Message size [bytes]", "offset": 8},
    ]
    payload = struct.pack("<IIIIQQQQ", 1, 0, 77, 0, 16, 48, 0xABC, 4096)
    for at, name, said in (
        (1, "ncclAllReduce", payload),
        (3, "ncclAllGather", payload),
        (5, "ncclReduce", b""),
    ):
        program.ranges.append(
            {"start": at * MS, "end": (at + 1) * MS, "eventType": 59, "text": name, "domainId": 1,
             "globalTid": thread(1), "binaryData": said}
        )  # fmt: skip
        program.launch(at + 0.5, "ncclDevKernel", 0.1)
    trace = one(write(tmp_path / "x.sqlite", {**program.rows(), FIELDS: fields, TEXT: names.rows()}))
    said, *others = trace.device_events["collective"]
    assert json.loads(said) == {
        "Collective name": "allreduce", "dtype": "Byte", "In msg nelems": 4096, "Out msg nelems": 4096,
        "Process Group Name": "abc",
    }  # fmt: skip
    assert others == [None, None]  # of these one message is not all, or nothing is said
    table = collectives(trace)
    assert table.select("kind", "bytes").row(0) == ("all-reduce", 4096)


def test_each_process_that_used_a_device_is_a_rank(tmp_path: Path) -> None:
    names = Names()
    second, first, loader = Program(names, 20, 1), Program(names, 30, 0), Program(names, 40)
    for program in (second, first):
        program.launch(1, f"of_{program.pid}")
    loader.range("loads", 1, 2)
    tables = {
        table: second.rows()[table] + first.rows()[table] + loader.rows()[table] for table in first.rows()
    }
    run = load(write(tmp_path / "x.sqlite", {**tables, TEXT: names.rows()}))
    assert [trace.rank for trace in run.traces] == [0, 1]
    assert [trace.device_events["name"].to_list() for trace in run.traces] == [["of_30"], ["of_20"]]
    assert all(trace.device_events["launch"].null_count() == 0 for trace in run.traces)
    notes = [note.text for note in health(run).notes if note.code == "recorded-by-nsys"]
    assert [text[: text.index(":")] for text in notes] == [
        "recorded by Nsight Systems (process 30, one of 2 that used a device",
        "recorded by Nsight Systems (process 20, one of 2 that used a device",
    ]


def test_a_process_that_ended_before_another_began_is_no_earlier_window(tmp_path: Path) -> None:
    names = Names()
    first, second = Program(names, 20, 0), Program(names, 30, 1)
    first.launch(1, "prepares")
    second.launch(5000, "trains")
    tables = {table: first.rows()[table] + second.rows()[table] for table in first.rows()}
    run = load(write(tmp_path / "x.sqlite", {**tables, TEXT: names.rows()}))
    assert [trace.device_events["name"].to_list() for trace in run.traces] == [["prepares"], ["trains"]]
    assert not run.remarks


def test_very_many_processes_are_not_all_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETOSCOPE_RANKS", "2")
    names = Names()
    programs = [Program(names, pid) for pid in range(1, 5000)]
    for program in programs:
        program.launch(1, "k")
    kernels = [program.kernels[0] for program in programs]
    run = load(write(tmp_path / "x.sqlite", {KERNEL: kernels, TEXT: names.rows()}))
    assert len(run.traces) == 2
    assert [damage.count for damage in run.traces[0].source.damages] == [4997]


@pytest.mark.parametrize(
    ("inner", "outer", "found"),
    [
        (("forward", 0, 5), "train", ["step 0", "step 1", "step 2"]),
        (None, None, ["step 0", "step 1", "step 2"]),
    ],
)
def test_outermost_ranges_that_recur_are_steps(
    inner: tuple[str, float, float] | None, outer: str | None, found: list[str], tmp_path: Path
) -> None:
    names = Names()
    program = Program(names)
    if outer:
        program.range(outer, 0, 100)
    for step in range(3):
        at = 10 + 20 * step
        program.range(f"step {step}", at, at + 18)
        if inner:
            program.range(inner[0], at + 0.5, at + inner[2])
        program.launch(at + 1, "a")
        program.launch(at + 10, "b")
    trace = one(write(tmp_path / "x.sqlite", {**program.rows(), TEXT: names.rows()}))
    assert trace.steps["name"].to_list() == found
    assert trace.device_events["step"].to_list() == [0, 0, 1, 1, 2, 2]
    assert periods(trace)["start_ns"].to_list()[1:] == [31.2 * MS, 51.2 * MS]


def test_parts_of_steps_and_ranges_of_setup_are_no_steps(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    for step in range(4):
        at = 20 * step
        for part, name in enumerate(("forward", "backward")):
            program.range(name, at + 9 * part, at + 9 * part + 8)
            program.launch(at + 9 * part + 1, name)
    assert one(write(tmp_path / "x.sqlite", {**program.rows(), TEXT: names.rows()})).steps.is_empty()


def test_a_training_program_without_ops_is_no_server(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    for step in range(4):
        for layer in range(6):
            program.launch(100 * step + layer, "flash_fwd_kernel", 0.5)
        program.launch(100 * step + 10, "cunn_SoftMaxBackward", 0.5)
    trace = one(write(tmp_path / "x.sqlite", {**program.rows(), TEXT: names.rows()}))
    assert marks(trace).table.is_empty()


def test_whole_graphs_and_open_ranges_are_kept_and_said(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    program.launch(1, "k")
    program.range("open", 0.5, None)
    tables = {**program.rows(), GRAPH: [program.work(4, 3, 1, graphId=8)], TEXT: names.rows()}
    trace = one(write(tmp_path / "x.sqlite", tables))
    assert trace.device_events["name"].to_list() == ["k", "CUDA graph 8"]
    assert [damage.code for damage in trace.source.damages] == ["whole-graphs"]
    assert trace.source.complete
    assert "--cuda-graph-trace=node" in trace.source.damages[0].text
    opened = trace.host_events.filter(trace.host_events["name"].cast(str) == "open").row(0, named=True)
    assert opened["start_ns"] + opened["duration_ns"] == 7 * MS


def test_devices_are_known_by_their_facts(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    program.launch(1, "k")
    facts: Row = {"id": 4, "name": "NVIDIA H100", "totalMemory": 80 << 30, "smCount": 132, "computeMajor": 9}
    tables = {**program.rows(), GPU: [{**facts, "computeMinor": 0}], DEVICE: [{"gpuId": 4, "cudaId": 0}]}
    (device,) = one(write(tmp_path / "x.sqlite", {**tables, TEXT: names.rows()})).devices
    assert (device.index, device.name, device.multiprocessors) == (0, "NVIDIA H100", 132)
    assert (device.total_memory_bytes, device.compute_capability) == (80 << 30, (9, 0))


def test_devices_of_early_exports_stand_in_another_table(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    program.launch(1, "k")
    old = (
        "CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId, name, globalMemorySize, numMultiprocessors, "
        "computeCapabilityMajor, computeCapabilityMinor)"
    )
    row = f"INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'A100', {40 << 30}, 108, 8, 0)"
    path = write(tmp_path / "x.sqlite", {**program.rows(), TEXT: names.rows()}, [old, row])
    (device,) = one(path).devices
    assert (device.index, device.name, device.multiprocessors) == (0, "A100", 108)
    assert (device.total_memory_bytes, device.compute_capability) == (40 << 30, (8, 0))


def test_pages_of_unified_memory_are_copies(tmp_path: Path) -> None:
    names = Names()
    program = Program(names)
    program.launch(1, "k")
    copies = [program.work(3 + kind, 1, 0, bytes=4096, copyKind=kind) for kind in (11, 12, 13, 14)]
    trace = one(write(tmp_path / "x.sqlite", {**program.rows(), COPY: copies, TEXT: names.rows()}))
    assert trace.device_events["name"].to_list()[1:] == [
        "Memcpy HtoD (unified memory)", "Memcpy DtoH (unified memory)", "Memcpy DtoD (unified memory)",
        "Memcpy Unknown (Unknown -> Unknown)",
    ]  # fmt: skip


def test_tables_and_columns_that_an_export_lacks_are_left_empty(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        {},
        [
            'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", shortName)',
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 1), ('x', 2000, 1), (5000, NULL, 9)",
            "CREATE TABLE StringIds (id, value)",
            "INSERT INTO StringIds VALUES (1, 'k')",
        ],
    )
    trace = one(path)
    assert trace.device_events.select("name", "start_ns", "duration_ns").rows() == [
        ("k", 1000, 2000), ("(no name)", 5000, 0),
    ]  # fmt: skip
    assert {damage.code: damage.count for damage in trace.source.damages} == {
        "missing-time": 1, "missing-duration": 1,
    }  # fmt: skip
    assert not listing(load(path), "op", None).is_noted


def test_a_process_without_a_number_is_one_all_the_same(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        {},
        [
            'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", streamId, correlationId, shortName)',
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 3000, 7, 1, 1)",
            'CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId)',
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1500, 1, 1, 2)",
            "CREATE TABLE StringIds (id, value)",
            "INSERT INTO StringIds VALUES (1, 'k'), (2, 'cudaLaunchKernel')",
        ],
    )
    assert one(path).device_events["launch"].to_list() == [0]
    assert not any(note.code == "unknown-export" for note in health(load(path)).notes)


def test_databases_of_other_tools_and_empty_exports_are_refused(tmp_path: Path) -> None:
    for name, statement, said in (
        ("rocpd", "CREATE TABLE rocpd_kernel_dispatch_7 (id)", "rocpd"),
        ("rocpd-4", "CREATE TABLE _rocpd_region (id)", "rocpd"),
        ("nvprof", "CREATE TABLE StringTable (_id_, value)", "a profile of nvprof"),
        ("other", "CREATE TABLE people (id)", "none that Nsight Systems exported"),
        ("empty", "CREATE TABLE StringIds (id, value)", "neither device work nor a call"),
    ):
        with pytest.raises(NotATraceError, match=said) as refusal:
            load(write(tmp_path / f"{name}.db", {}, [statement]))
        assert refusal.value.hint
