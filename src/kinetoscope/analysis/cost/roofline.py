"""How near each kernel comes to what its device can do, wherever shapes were recorded."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from kinetoscope.analysis.cost.call import DTYPES, Cost, OpCall
from kinetoscope.analysis.cost.formulas import cost
from kinetoscope.analysis.cost.lists import listed_elements
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.hardware import DeviceSpec, find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace, with_arguments
from kinetoscope.trace.schema import typed

ARGUMENTS = ["input_dims", "input_types", "input_strides", "concrete_inputs"]
LEFT_OPEN = ["kernel", "listed"]  # what the recorded arguments leave open
COUNTED = ["kernel_flops", "kernel_gigabytes"]
TF32 = r"tf32|_s1688|s161616gemm_tf32|_TF32_"  # kernels whose name says that they round fp32 to tf32 first

CALLS = {"id": pl.UInt32, "time_ns": pl.Int64}
DISTINCT = {
    "name": pl.Categorical,
    "op_name": pl.Categorical,
    "shapes": pl.Categorical,
    "dtype": pl.Categorical,
    "flops": pl.Int64,
    "bytes": pl.Int64,
    "peak_flops": pl.Float64,
    "peak_bandwidth": pl.Float64,
}


def costed(trace: Trace, *columns: pl.Expr) -> pl.DataFrame:
    """The op calls whose cost is known, one row each, in the order of ``device_events``; of a call that
    launches several kernels all stands with the longest.

    ``id`` (row of ``device_events``), ``name`` of that kernel, ``op_name``, ``shapes`` (JSON), ``dtype`` that
    bounds it, ``flops``, ``bytes`` (see ``formulas``), ``time_ns``, ``peak_flops`` and ``peak_bandwidth``
    (per second; null where not known); or ``id``, ``time_ns`` and these ``columns``.
    """
    calls, distinct = _calls(trace), _distinct(trace)
    distinct = distinct.select(columns or pl.all())
    return calls.select(*CALLS).hstack(distinct[calls["distinct"]])


@kept
def _calls(trace: Trace) -> pl.DataFrame:
    return _costed(trace)[0]


@kept
def _distinct(trace: Trace) -> pl.DataFrame:
    return _costed(trace)[1]


@remembered
def _costed(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The calls of ``costed`` (``id``, ``time_ns``), each with the row of what sets it apart from others."""
    host = trace.host_events
    work = trace.device_events.select("id", "duration_ns", "op", "launch").drop_nulls("op")
    # An op that was captured into a graph is called anew by each replay, whose one launch does all its work.
    captured = matching(host, "category", "^captured_")[work["op"]]
    if captured.any():
        work = work.with_columns(replay=pl.when(captured).then("launch"))
    of_longest = pl.col("duration_ns").arg_max()
    calls = (
        work.sort("op")  # in order, groups need no table of hashes
        .group_by(["op", "replay"] if captured.any() else "op", maintain_order=True)
        .agg(pl.col("id").get(of_longest), time_ns=pl.col("duration_ns").sum())
        .filter(pl.col("time_ns") > 0)
    )
    arguments = trace.host_arguments
    calls = calls.hstack(host.select("name", "arguments")[calls["op"]])
    calls = calls.filter(arguments["input_dims"].is_not_null().gather(calls["arguments"]))
    kernels = trace.device_events.select("device", kernel="name")[calls["id"]]
    calls = calls.with_columns(*kernels, listed_elements(trace, calls))
    # Rows are distinguished by a 64-bit hash.
    said = arguments.select(*ARGUMENTS, *COUNTED).hash_rows().gather(calls["arguments"])
    key = calls.select("name", "device", *LEFT_OPEN).with_columns(said=said)
    calls = calls.with_columns(hash=key.hash_rows())
    known = _known_costs(with_arguments(calls.unique("hash", maintain_order=True), arguments))
    rounded = matching(known, "name", TF32) & (known["dtype"] == "fp32") & known["matrix"]
    # What goes through the bus to the host is not bound by the device's memory.
    by_bus = matching(known, "name", r"^Memcpy (HtoD|DtoH|PtoP)")
    distinct = (
        known.with_columns(dtype=pl.when(rounded).then(pl.lit("tf32")).otherwise("dtype"))
        .join(peaks(trace), on=["device", "dtype"], how="left", maintain_order="left")
        .with_columns(pl.when(~by_bus).then(pl.col("peak_flops", "peak_bandwidth")))
    )
    found = calls.join(distinct.select("hash").with_row_index("distinct"), on="hash")
    return found.sort("id").select(*typed(CALLS), "distinct"), distinct.select(typed(DISTINCT))


def _known_costs(distinct: pl.DataFrame) -> pl.DataFrame:
    """The cost of each distinct call that a formula knows; a trace has hundreds of them."""

    def decoded(text: str | None) -> list[Any]:  # what a file says: see OpCall
        found = msgspec.json.decode(text) if text else []
        return found if isinstance(found, list) else []

    costs: list[Cost | None] = []
    columns = ["name", *LEFT_OPEN, *ARGUMENTS, *COUNTED]
    for name, kernel, listed, *arguments, flops, gigabytes in distinct.select(columns).iter_rows():
        shapes, types, strides, values = (decoded(text) for text in arguments)
        found = cost(OpCall(name, shapes, types, strides, [str(value) for value in values], kernel, listed))
        if found is not None and gigabytes:  # Inductor knows which of its tensors are both read and written
            found = found._replace(bytes=round(gigabytes * 1e9), flops=flops or found.flops)
        costs.append(found)
    return (
        distinct.select("hash", "device", name="kernel", op_name="name", shapes="input_dims")
        .with_columns(
            pl.Series("flops", [c and c.flops for c in costs], pl.Int64),
            pl.Series("bytes", [c and c.bytes for c in costs], pl.Int64),
            pl.Series("dtype", [c and c.dtype for c in costs], pl.String),
            pl.Series("matrix", [c and c.matrix for c in costs], pl.Boolean),
        )
        .filter((pl.col("flops") + pl.col("bytes")) > 0)
    )


def device_spec(trace: Trace, device: int) -> DeviceSpec | None:
    """The specification of a device of the trace, if it is known. Where the file's list does not have its
    number (visible devices are numbered otherwise than physical ones), any entry says, if they all name one
    product."""
    listed = {entry.index: entry for entry in trace.devices}
    if device not in listed and len({entry.name for entry in trace.devices}) != 1:
        return None
    entry = listed.get(device, trace.devices[0])
    return find(entry.name, entry.total_memory_bytes)


def peaks(trace: Trace) -> pl.DataFrame:
    """``peak_flops`` by device and dtype, ``peak_bandwidth``. A dtype without a unit is computed in fp32."""
    rows: list[tuple[int, str, float | None, float]] = []
    for device in trace.device_events["device"].unique():
        spec = device_spec(trace, device)
        if spec is not None:
            dtypes = sorted({name for name, _ in DTYPES.values()} | {"tf32"})
            rows += [(device, d, spec.peak(d) or spec.peak("fp32"), spec.bandwidth) for d in dtypes]
    columns = {"device": pl.Int32, "dtype": pl.String, "peak_flops": pl.Float64, "peak_bandwidth": pl.Float64}
    return pl.DataFrame(rows, columns, orient="row")


@remembered
def roofline(run: LoadedRun) -> pl.DataFrame:
    """One row per kernel, op and shapes, of all ranks, longest first: ``name`` (kernel), ``op_name``,
    ``shapes``, ``dtype``, ``calls``, ``time_ns``, ``flops`` and ``bytes`` (of all calls), ``flops_per_s``,
    ``bytes_per_s``, ``flops_share`` and ``bandwidth_share`` of the device's peaks, ``speed_of_light`` (the
    larger), ``bound`` (``compute`` or ``memory``) and ``refused``: above 100 % the model does not hold (data
    that never left the cache, work that was skipped), and the shares are null, as without a known device."""
    table = pl.concat([pl.DataFrame(schema=CALLS | DISTINCT), *map(costed, run.traces)])
    by = ["name", "op_name", "shapes", "dtype"]
    compute, memory = pl.col("flops") / pl.col("peak_flops"), pl.col("bytes") / pl.col("peak_bandwidth")
    seconds = pl.col("time_ns") / 1e9
    shares = ["flops_share", "bandwidth_share", "speed_of_light"]
    return (
        table.with_columns(compute_s=compute, memory_s=memory)
        .group_by(by, maintain_order=True)
        .agg(
            pl.len().alias("calls"),
            pl.col("time_ns", "flops", "bytes").sum(),
            # A sum of nulls would be 0, a rate that was not measured.
            flops_share=pl.when(pl.col("compute_s").is_not_null().all()).then(pl.col("compute_s").sum()),
            bandwidth_share=pl.when(pl.col("memory_s").is_not_null().all()).then(pl.col("memory_s").sum()),
        )
        .with_columns(
            (pl.col("flops") / seconds).alias("flops_per_s"),
            (pl.col("bytes") / seconds).alias("bytes_per_s"),
            pl.col("flops_share") / seconds,
            pl.col("bandwidth_share") / seconds,
        )
        .with_columns(
            speed_of_light=pl.max_horizontal("flops_share", "bandwidth_share"),
            bound=pl.when(pl.col("flops_share") > pl.col("bandwidth_share"))
            .then(pl.lit("compute"))
            .when(pl.col("bandwidth_share").is_not_null())
            .then(pl.lit("memory")),
        )
        .with_columns(refused=(pl.col("speed_of_light") > 1).fill_null(False))
        .with_columns(pl.when(~pl.col("refused")).then(pl.col(*shares, "bound")))
        .sort("time_ns", descending=True)
    )


@remembered
def kernel_roofline(run: LoadedRun) -> pl.DataFrame:
    """One row per kernel ``name``: ``flops`` and ``bytes`` (null unless every launch's cost is known),
    ``speed_of_light`` (over the calls whose model holds: the time they would take at their peaks, over the
    time they took), ``costed_launches``, ``refused_launches`` and ``launches``."""
    names = [trace.device_events.select("name") for trace in run.traces]
    events = pl.concat([pl.DataFrame(schema={"name": pl.Categorical}), *names])
    counts = events.group_by("name").agg(launches=pl.len())
    holds = ~pl.col("refused") & pl.col("speed_of_light").is_not_null()
    ideal = (pl.col("speed_of_light") * pl.col("time_ns")).filter(holds).sum()
    costs = (
        roofline(run)
        .group_by("name")
        .agg(
            pl.col("calls").sum().alias("costed_launches"),
            pl.col("calls").filter(pl.col("refused")).sum().alias("refused_launches"),
            pl.col("flops", "bytes").sum(),
            speed_of_light=pl.when(holds.any()).then(ideal / pl.col("time_ns").filter(holds).sum()),
        )
    )
    every = pl.col("costed_launches") == pl.col("launches")
    return counts.join(costs, on="name").with_columns(pl.when(every).then(pl.col("flops", "bytes")))
