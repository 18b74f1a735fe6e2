"""A run as Chrome JSON that Perfetto shows whole: events nest on every lane, launches point at their work."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.kernels.work import work
from kinetoscope.export.memory_counters import counts
from kinetoscope.export.nesting import ANNOTATION, DEVICE, HOST, named, nested
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace, with_arguments
from kinetoscope.trace.schema import whole

KINDS = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}

# Perfetto turns microseconds into nanoseconds by cutting, not rounding: 4.035 µs becomes 4034 ns, a child
# then ends after its parent and is dropped. A fifth of a nanosecond more is cut to the right number, and
# rounds to it.
CUT = 0.0002


def render(run: LoadedRun) -> bytes:
    """One JSON document; times count from the first event. Several ranks stand below each other."""
    drawn = [(trace, nested(trace)) for trace in run.traces]
    base = min((whole(events["start_ns"].min()) for _, events in drawn if len(events)), default=0)
    lines: list[str] = []
    pids: dict[tuple[int, str], int] = {}
    arrows = 0
    for trace, events in drawn:
        lines += _trace_lines(trace, events, base, pids, arrows, several=len(drawn) > 1)
        arrows += len(trace.device_events)
        lines += _memory(run, trace, base, pids)
    devices = msgspec.json.encode([{"id": d.index, "name": d.name} for d in run.traces[0].devices]).decode()
    head = f'{{"displayTimeUnit":"ns","deviceProperties":{devices},"traceEvents":[\n'
    return (head + ",\n".join(lines) + "\n]}\n").encode()


def _trace_lines(
    trace: Trace,
    events: pl.DataFrame,
    base: int,
    pids: dict[tuple[int, str], int],
    arrows: int,
    *,
    several: bool,
) -> list[str]:
    lanes = _lanes(trace, events, pids)
    placed = events.join(lanes, on=["lane", "extra"], maintain_order="left").with_columns(
        ts=_microseconds(pl.col("start_ns") - base), dur=_microseconds(pl.col("duration_ns"))
    )
    lines = _names(trace, lanes, several=several)
    for of, table in (
        (HOST, _host(trace)),
        (DEVICE, _device(trace)),
        (ANNOTATION, _annotations(trace)),
    ):
        rows = placed.filter(pl.col("of") == of).join(table.with_row_index("row"), on="row")
        lines += _json(rows.select("name", pl.lit("X").alias("ph"), "cat", "pid", "tid", "ts", "dur", "args"))
    return lines + _flows(trace, placed, arrows)


def _lanes(trace: Trace, events: pl.DataFrame, pids: dict[tuple[int, str], int]) -> pl.DataFrame:
    """(lane, extra, pid, tid): numbers of our own, since a file's may be text, or another rank's as well."""
    used = events.select("lane", "extra").unique(maintain_order=True)
    numbers = [
        pids.setdefault((trace.rank, pid), len(pids) + 1)
        for pid in used.join(trace.lanes, left_on="lane", right_on="id", maintain_order="left")["pid"]
    ]
    return used.with_columns(pl.Series("pid", numbers, pl.Int64)).with_row_index("tid", offset=1)


def _names(trace: Trace, lanes: pl.DataFrame, *, several: bool) -> list[str]:
    rows: list[dict[str, object]] = []
    numbers = lanes.select("pid", "tid").iter_rows()
    for lane, (pid, tid) in zip(named(trace, lanes, several=several), numbers, strict=True):
        rows += [
            _metadata("process_name", pid, tid, name=lane.process),
            _metadata("process_sort_index", pid, tid, sort_index=2 * trace.rank + (lane.device is not None)),
            _metadata("thread_name", pid, tid, name=lane.thread),
            _metadata("thread_sort_index", pid, tid, sort_index=tid),
        ]
    return [msgspec.json.encode(row).decode() for row in rows]


def _metadata(kind: str, pid: int, tid: int, **values: object) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": values}


def _host(trace: Trace) -> pl.DataFrame:
    arguments = pl.struct(
        pl.col("category").cast(pl.String).alias("kind"),
        "correlation",
        pl.col("external_id").alias("External id"),
        pl.col("sequence").alias("Sequence number"),
        pl.col("input_dims").cast(pl.String).alias("shapes"),
        pl.col("input_types").cast(pl.String).alias("types"),
        pl.col("call_stack").cast(pl.String).alias("Call stack"),
    )
    host = with_arguments(trace.host_events, trace.host_arguments, "input_dims", "input_types", "call_stack")
    return host.select(cat=pl.col("category").cast(pl.String), args=arguments)


def _device(trace: Trace) -> pl.DataFrame:
    arguments = pl.struct(
        pl.col("category").cast(pl.String).alias("kind"),
        "device",
        "stream",
        "correlation",
        pl.col("external_id").alias("External id"),
        "bytes",
        pl.col("grid", "block").cast(pl.String),
        pl.col("registers").alias("registers per thread"),
        pl.col("shared_memory_bytes").alias("shared memory"),
        pl.col("occupancy_percent").alias("occupancy %"),
        pl.col("op_name").alias("op"),
    )
    return (
        with_arguments(work(trace), trace.device_arguments, "occupancy_percent")
        .with_columns(op_name=trace.host_events["name"].cast(pl.String).gather(work(trace)["op"]))
        .select(cat=pl.col("kind").cast(pl.String).replace(KINDS), args=arguments)
    )


def _annotations(trace: Trace) -> pl.DataFrame:
    return trace.device_annotations.select(
        cat=pl.col("category").cast(pl.String),
        args=pl.struct(pl.col("category").cast(pl.String).alias("kind"), "device", "stream"),
    )


def _memory(run: LoadedRun, trace: Trace, base: int, pids: dict[tuple[int, str], int]) -> list[str]:
    """Counters of device memory, one a device, in a process of their own."""
    rows: list[dict[str, object]] = []
    for one in counts(run, trace):
        name = f"GPU {one.device} memory"
        pid = pids.setdefault((trace.rank, name), len(pids) + 1)
        at = (one.start_ns - base) / 1000
        rows.append({"name": "bytes", "ph": "C", "pid": pid, "tid": 0, "ts": at, "args": one.bytes})
    for (rank, name), pid in pids.items():
        if rank == trace.rank and name.endswith(" memory"):
            rows.append(_metadata("process_name", pid, 0, name=name))
    return [msgspec.json.encode(row).decode() for row in rows]


def _flows(trace: Trace, placed: pl.DataFrame, first: int) -> list[str]:
    """An arrow from each launch to its work, numbered from ``first``."""
    on_host = placed.filter(pl.col("of") == HOST).select(pl.col("row").alias("launch"), "pid", "tid", "ts")
    on_device = placed.filter(pl.col("of") == DEVICE).select("row", "pid", "tid", "ts")
    arrows = (
        trace.device_events.select("launch")
        .with_row_index("row")
        .drop_nulls("launch")
        .join(on_host, on="launch")
        .join(on_device, on="row", suffix="_device")
    )
    shared = [
        pl.lit("launch").alias("name"),
        pl.lit("ac2g").alias("cat"),
        (pl.col("row").cast(pl.Int64) + first).alias("id"),
    ]
    starts = arrows.select(*shared, pl.lit("s").alias("ph"), "pid", "tid", "ts")
    ends = arrows.select(
        *shared, ph=pl.lit("f"), bp=pl.lit("e"), pid="pid_device", tid="tid_device", ts="ts_device"
    )
    return _json(starts) + _json(ends)


def _microseconds(ns: pl.Expr) -> pl.Expr:
    return (ns / 1000 + CUT).round(4)


def _json(rows: pl.DataFrame) -> list[str]:
    """One JSON object a row, arguments that are null left out.

    Inside a JSON string every quote has a backslash before it, so ``,"`` can only be between two members.
    """
    return (
        rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
        .select(pl.struct(pl.all()).struct.json_encode().str.replace_all(r',"[A-Za-z_% ]+":null', ""))
        .to_series()
        .to_list()
    )
