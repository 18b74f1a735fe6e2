"""Small traces for tests, made of raw events as a file has them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from kinetoscope.trace import schema
from kinetoscope.trace.model import Source, Trace
from kinetoscope.trace.read import read

Event = dict[str, Any]


def host(name: str, ts: float, dur: float, category: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    """An op, annotation or runtime call; times in microseconds, as everywhere in a trace file."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def event(category: str, name: str, start: float, duration: float, tid: int = 1, **args: Any) -> Event:
    """Any slice of a host thread, its category first."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 1) -> Event:
    return host(name, ts, dur, "cuda_runtime", tid, correlation=correlation)


def step(number: int, ts: float, dur: float) -> Event:
    return host(f"ProfilerStep#{number}", ts, dur, "user_annotation")


def kernel(
    name: str, ts: float, dur: float, correlation: int = 0, device: int = 0, stream: int = 7, **args: Any
) -> Event:
    arguments = {"device": device, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur} | {
        "args": arguments
    }


def copy(ts: float, dur: float, device: int = 0, stream: int = 7) -> Event:
    return kernel("Memcpy DtoD (Device -> Device)", ts, dur, 0, device, stream) | {"cat": "gpu_memcpy"}


def trace(*events: Event, rank: int = 0) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
        return read(path, rank=rank)


def nothing() -> Trace:
    """What stands for the trace of an input that has none, such as a compile log."""
    tables = {name: schema.empty(columns) for name, columns in schema.TABLES.items()}
    return Trace(Source("nothing", 0, 0, 0), **tables)
