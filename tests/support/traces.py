"""Small traces for tests, made of raw events as a file has them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinetoscope.analysis.events.torch_names import CLOCK
from kinetoscope.sources.run import LoadedRun
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


def on_cpu(events: Iterable[Event]) -> list[Event]:
    """The events as a program without a device has them: no launches nor what they launch, and backward
    passes on the thread of the forward ones."""
    of_device = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")
    return [{**one, "tid": 1} for one in events if one["cat"] not in of_device]


def trace(*events: Event, rank: int = 0) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
        return read(path, rank=rank)


def nothing() -> Trace:
    """What stands for the trace of an input that has none, such as a compile log."""
    tables = {name: schema.empty(columns) for name, columns in schema.HELD.items()}
    return Trace(Source("nothing", 0, 0, 0), **tables)


def noted(*lines: tuple[str, str], skew: float = 0.0) -> Trace:
    """A step that calls each op (``Layer/Attention/aten::mm`` in modules; or several) from the line with it;
    the profiler's clock is ``skew`` µs ahead of Python's."""
    events = [step(9, 99, max(500, 20 * len(lines) + 2))]
    for place, (name, line) in enumerate(lines):
        at = 100 + 20.0 * place
        *modules, op = name.split("/")
        events += [
            event("python_function", f"nn.Module: {one}", at + 0.1 * (1 + depth), 19 - 0.2 * (1 + depth))
            for depth, one in enumerate(modules)
        ]
        ops = op.split()
        took = 10 / (1 + len(ops))
        events += [event("python_function", line, at, 20)]
        events += [host(one, at + 5 + took * number, took) for number, one in enumerate(ops)]
    for at in (1.0, 3.0):
        events.append(event("python_function", CLOCK, at, 1))
        events.append(event("user_annotation", CLOCK, at + 0.3 + skew, 0.2))
    return trace(*events)


def two_layers() -> LoadedRun:
    """A product of an attention in a layer, an addition of the step itself, and 60 µs between them."""
    recorded = trace(
        step(1, 0, 200),
        host("aten::mm", 10, 10), call("cudaLaunchKernel", 12, 2, 1), kernel("gemm", 20, 30, 1),
        host("aten::add", 80, 10), call("cudaLaunchKernel", 82, 2, 2), kernel("add", 90, 10, 2),
    )  # fmt: skip
    lines = noted(("Layer/Attention/aten::mm", "a.py(1): Attention.forward"), ("aten::add", "a.py(2): step"))
    return LoadedRun((recorded,), lines={0: lines})
