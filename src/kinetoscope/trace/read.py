"""A file to a Trace."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kinetoscope.errors import InputError, NotATraceError
from kinetoscope.trace import schema
from kinetoscope.trace.link import link
from kinetoscope.trace.model import DeviceProperties, Source, Trace

DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


def read(path: str | Path, *, rank: int | None = None) -> Trace:
    """Read one Kineto / Chrome JSON trace (plain or gzip) into tables."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", where=str(path)) from error
    size = len(data)
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise NotATraceError(f"not JSON: {error}", where=str(path)) from error
    events: list[dict[str, Any]] = document["traceEvents"] if isinstance(document, dict) else document
    metadata = {k: v for k, v in document.items() if k != "traceEvents"} if isinstance(document, dict) else {}

    lanes: dict[tuple[str, str], int] = {}
    names: dict[tuple[str, str], str] = {}
    process_names: dict[str, str] = {}
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    flows: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    device_lanes: set[int] = set()

    def ns(value: Any) -> int:
        return round(float(value) * 1000)

    for index, event in enumerate(events):
        phase, category = event.get("ph"), str(event.get("cat") or "").lower()
        category = {
            "operator": "cpu_op",
            "runtime": "cuda_runtime",
            "memcpy": "gpu_memcpy",
            "memset": "gpu_memset",
        }.get(category, category)
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        arguments = event.get("args") or {}
        if phase == "M":
            if event.get("name") == "process_name":
                process_names[pid] = str(arguments.get("name"))
            elif event.get("name") == "thread_name":
                names[pid, tid] = str(arguments.get("name"))
            continue
        lane = lanes.setdefault((pid, tid), len(lanes))
        if phase in ("s", "f", "t"):
            flows.append(
                {
                    "category": category,
                    "flow": event.get("id"),
                    "is_start": phase == "s",
                    "lane": lane,
                    "start_ns": ns(event["ts"]),
                }
            )
        elif phase == "X" and category in DEVICE_KINDS:
            device_lanes.add(lane)
            device.append(
                {
                    "event": index,
                    "kind": DEVICE_KINDS[category],
                    "name": str(event["name"]),
                    "lane": lane,
                    "device": int(arguments.get("device", pid if pid.isdigit() else 0)),
                    "stream": int(arguments.get("stream", 0)),
                    "context": arguments.get("context"),
                    "start_ns": ns(event["ts"]),
                    "duration_ns": ns(event["dur"]),
                    "correlation": arguments.get("correlation"),
                    "external_id": arguments.get("External id", arguments.get("external id")),
                    "grid": _json(arguments.get("grid")),
                    "block": _json(arguments.get("block")),
                    "registers": arguments.get("registers per thread"),
                    "shared_memory_bytes": arguments.get("shared memory"),
                    "blocks_per_sm": _number(arguments.get("blocks per SM")),
                    "warps_per_sm": _number(arguments.get("warps per SM")),
                    "occupancy_percent": _number(arguments.get("est. achieved occupancy %")),
                    "bytes": arguments.get("bytes"),
                    "graph_node": arguments.get("graph node id"),
                    "collective": _json({k: v for k, v in arguments.items() if k in COLLECTIVE_KEYS} or None),
                }
            )
        elif phase == "X" and (
            category in ("gpu_user_annotation", "cuda_sync")
            or (category == "overhead" and "device" in arguments)
        ):
            notes.append(
                {
                    "event": index,
                    "category": category,
                    "name": str(event["name"]),
                    "lane": lane,
                    "device": int(arguments.get("device", pid if pid.isdigit() else 0)),
                    "stream": _integer(tid),
                    "start_ns": ns(event["ts"]),
                    "duration_ns": ns(event["dur"]),
                    "external_id": arguments.get("External id"),
                }
            )
        elif phase == "X":
            host.append(
                {
                    "event": index,
                    "category": category,
                    "name": str(event["name"]),
                    "lane": lane,
                    "start_ns": ns(event["ts"]),
                    "duration_ns": ns(event["dur"]),
                    "correlation": arguments.get("correlation"),
                    "external_id": arguments.get("External id", arguments.get("external id")),
                    "sequence": arguments.get("Sequence number"),
                    "forward_thread": arguments.get("Fwd thread id"),
                    "input_dims": _json(arguments.get("Input Dims", arguments.get("Input dims"))),
                    "input_types": _json(arguments.get("Input type")),
                    "input_strides": _json(arguments.get("Input Strides")),
                    "concrete_inputs": _json(arguments.get("Concrete Inputs")),
                    "call_stack": arguments.get("Call stack"),
                    "python_id": arguments.get("Python id"),
                    "python_parent_id": arguments.get("Python parent id"),
                }
            )
        elif phase == "i" and event.get("name") == "[memory]":
            memory.append(
                {
                    "event": index,
                    "start_ns": ns(event["ts"]),
                    "lane": lane,
                    "device_type": arguments.get("Device Type"),
                    "device": arguments.get("Device Id"),
                    "address": arguments.get("Addr"),
                    "bytes": arguments.get("Bytes"),
                    "total_allocated": arguments.get("Total Allocated"),
                    "total_reserved": arguments.get("Total Reserved"),
                }
            )
    lane_rows = [
        {
            "id": i,
            "pid": pid,
            "tid": tid,
            "process_name": process_names.get(pid),
            "thread_name": names.get((pid, tid)),
            "is_device": i in device_lanes,
        }
        for (pid, tid), i in lanes.items()
    ]
    distributed = metadata.get("distributedInfo") or {}
    return link(
        Trace(
            source=Source(
                str(path), size, len(events), int(rank if rank is not None else distributed.get("rank", 0))
            ),
            lanes=_table(lane_rows, schema.LANES),
            host_events=_table(host, schema.HOST_EVENTS),
            device_events=_table(device, schema.DEVICE_EVENTS),
            steps=_table([], schema.STEPS),
            device_annotations=_table(notes, schema.DEVICE_ANNOTATIONS),
            flows=_table(flows, schema.FLOWS),
            memory=_table(memory, schema.MEMORY),
            devices=tuple(_properties(d) for d in metadata.get("deviceProperties") or []),
            metadata=metadata,
        )
    )


COLLECTIVE_KEYS = (
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "In split size",
    "Out split size",
    "Seq",
    "Rank",
)


def _properties(entry: dict[str, Any]) -> DeviceProperties:
    capability = (entry["computeMajor"], entry["computeMinor"]) if "computeMajor" in entry else None
    return DeviceProperties(
        int(entry["id"]),
        str(entry["name"]),
        entry.get("totalGlobalMem"),
        capability,
        entry.get("numSms"),
        entry,
    )


def _table(rows: list[dict[str, Any]], declared: schema.Schema) -> pl.DataFrame:
    types = schema.dtypes(declared)
    return pl.DataFrame(rows, schema=types, strict=False) if rows else pl.DataFrame(schema=types)


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
