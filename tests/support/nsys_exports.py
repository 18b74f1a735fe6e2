"""Exports of Nsight Systems for tests: made row by row, or of a trace of torch's profiler."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from kinetoscope.trace.model import Trace

PID = 1000
_WORK = "start end deviceId contextId streamId correlationId globalPid"
_INTEGERS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK} demangledName shortName registersPerThread gridX gridY gridZ "
    "blockX blockY blockZ staticSharedMemory dynamicSharedMemory graphNodeId graphId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK} bytes memKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK} graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_WORK} syncType",
    "NVTX_EVENTS": "start end eventType globalTid endGlobalTid textId domainId",
    "StringIds": "id",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx type offset",
    "TARGET_INFO_GPU": "id totalMemory smCount computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
}
_TEXTS = {
    "NVTX_EVENTS": "text binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "name",
    "StringIds": "value",
    "TARGET_INFO_GPU": "name",
}
KERNEL, COPY, MEMSET, GRAPH, CALL, WAIT, RANGE, TEXT, GPU, DEVICE = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE",
)  # fmt: skip
FIELDS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
Row = dict[str, int | str | bytes | None]


def process(pid: int = PID) -> int:
    """A globalPid."""
    return pid << 24


def thread(tid: int, pid: int = PID) -> int:
    """A globalTid."""
    return pid << 24 | tid


class Names:
    """Numbers of texts, as StringIds has them."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._of.setdefault(text, len(self._of))

    def rows(self) -> list[Row]:
        return [{"id": number, "value": text} for text, number in self._of.items()]


def write(path: Path, tables: dict[str, Sequence[Row]], extra: Iterable[str] = ()) -> Path:
    """An export of these tables; those without rows are absent, as nsys leaves them out.

    Args:
        extra: statements that are run at the end.
    """
    with sqlite3.connect(path) as database:
        for table, rows in tables.items():
            columns = [*_INTEGERS[table].split(), *_TEXTS.get(table, "").split()]
            if not rows:
                continue
            declared = ", ".join(f'"{name}"' for name in columns)
            database.execute(f'CREATE TABLE "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            values = ([row.get(name) for name in columns] for row in rows)
            database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        for statement in extra:
            database.execute(statement)
    database.close()
    return path


def of_trace(trace: Trace, path: Path, *, shift_ns: int = 0, ranges: Iterable[Row] = ()) -> Path:
    """What nsys would have recorded of the run of a torch trace: its kernels, copies, memsets and calls, on
    a clock that is ahead by ``shift_ns``, under nsys's own spelling; kernels of graphs have their nodes."""
    names = Names()
    tables: dict[str, list[Row]] = {KERNEL: [], COPY: [], MEMSET: [], CALL: [], RANGE: list(ranges)}
    origin = trace.host_events["start_ns"].min()
    assert isinstance(origin, int)
    place: dict[int | None, int] = {}
    for event in trace.device_events.iter_rows(named=True):
        start = event["start_ns"] - origin + shift_ns
        row: Row = {
            "start": start, "end": start + event["duration_ns"], "deviceId": event["device"], "contextId": 1,
            "streamId": event["stream"], "correlationId": event["correlation"], "globalPid": process(),
        }  # fmt: skip
        if event["kind"] == "kernel":
            spelled = event["name"].replace("(anonymous namespace)", "<unnamed>").replace("<4, ", "<(int)4, ")
            row |= {"demangledName": names(spelled), "gridX": 1, "gridY": 1, "gridZ": 1}
            launch = event["launch"]
            if launch is not None and "GraphLaunch" in trace.host_events["name"][launch]:
                place[launch] = place.get(launch, -1) + 1
                row["graphNodeId"] = 5 << 32 | place[launch]
            tables[KERNEL].append(row)
        elif event["kind"] == "memcpy":
            kinds = {"HtoD": (1, 1, 2), "DtoH": (2, 2, 1), "DtoD": (8, 2, 2)}
            row |= dict(zip(("copyKind", "srcKind", "dstKind"), kinds[event["name"].split()[1]], strict=True))
            tables[COPY].append(row | {"bytes": event["bytes"]})
        else:
            tables[MEMSET].append(row | {"bytes": event["bytes"], "memKind": 2})
    tids = {lane: 1 + number for number, lane in enumerate(trace.host_events["lane"].unique().sort())}
    calls = trace.host_events.filter(trace.host_events["correlation"].is_not_null())
    for event in calls.iter_rows(named=True):
        start = event["start_ns"] - origin + shift_ns
        tables[CALL].append(
            {
                "start": start, "end": start + event["duration_ns"], "globalTid": thread(tids[event["lane"]]),
                "correlationId": event["correlation"], "nameId": names(f"{event['name']}_v7000"),
                "eventClass": int(event["category"] == "cuda_driver"),
            }
        )  # fmt: skip
    return write(path, {**tables, TEXT: names.rows()})
