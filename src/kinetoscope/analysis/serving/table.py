"""The steps of a serving engine, by phase, batch and graph mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.serving.client import GENERATES, compared
from kinetoscope.analysis.serving.host import waiting
from kinetoscope.analysis.serving.layers import layer
from kinetoscope.analysis.serving.parts import parted, parts, rows_computed
from kinetoscope.analysis.serving.rows import (
    GraphReplays,
    Serving,
    ServingIdle,
    ServingPart,
    ServingPeriod,
    ServingRow,
)
from kinetoscope.analysis.serving.steps import LIKE, marks, steps
from kinetoscope.analysis.serving.worked import on_host
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

READS = ("prefill", "mixed")  # phases in which prompts are read


@remembered
def serving(run: LoadedRun) -> Serving | None:
    """A server's steps, of all its stages, the phase with most time first; None without steps."""
    stages = (run, *run.stages)
    rows = [row for stage in stages for trace in stage.traces for row in _rows(stage, trace)]
    rows.sort(key=lambda row: (row.rank, -row.n * (row.period_us.median if row.period_us else row.span_us)))
    if not rows:
        return None
    traces = (trace for stage in stages for trace in stage.traces)
    found = next(found for trace in traces if (found := marks(trace)).found_by)
    return Serving(
        engine=rows[0].engine,
        steps=rows,
        found_by=found.found_by,
        phases_by=found.phases_by,
        on_host=all(on_host(trace) for stage in stages for trace in stage.traces),
    )


def with_client(run: LoadedRun, measured: ClientTimes) -> Serving | None:
    found = serving(run)
    if found is None:
        return None
    rows = [
        msgspec.structs.replace(row, client_token_us=measured.token_us) if row.phase in GENERATES else row
        for row in found.steps
    ]
    return msgspec.structs.replace(found, steps=rows, client=compared(run, measured))


@remembered
def replays(run: LoadedRun) -> GraphReplays | None:
    """Work inside replayed graphs and how much of it is known, of all ranks; None where there is none."""
    counts = [replayed(trace) for trace in run.traces]
    inside, known, captured = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    if not inside:
        return None
    why = "" if known == inside else "no recorded capture fits these replays, or several do"
    return GraphReplays(
        captured=captured,
        replayed=inside,
        joined=known,
        verified=known,
        by="order" if known else "none",
        why=why,
    )


@remembered
def replayed(trace: Trace) -> tuple[int, int, int]:
    """How many device events ran inside replayed graphs, of how many of them the captured op is known, and
    how many launches their captures hold."""
    host, device = trace.host_events, trace.device_events
    inside = matching(host, "name", GRAPH_LAUNCH)[device["launch"]].fill_null(False)
    known = matching(host, "category", "^captured_")[device["op"]].fill_null(False)
    joined = device.select("launch", capture=host["lane"][device["op"]]).filter(inside & known)
    each = joined.group_by("capture").agg(launches=pl.len() / pl.col("launch").n_unique())
    return int(inside.sum()), len(joined), round(each["launches"].sum())


def _rows(run: LoadedRun, trace: Trace) -> Iterable[ServingRow]:
    if marks(trace).table.is_empty():
        return
    table = steps(trace)
    idle = waiting(run).filter(pl.col("rank") == trace.rank)
    for key, group in table.group_by(LIKE, maintain_order=True):
        yield _row(run, trace, tuple(key), group, group.filter(~pl.col("warming")), idle)


def _row(
    run: LoadedRun,
    trace: Trace,
    key: tuple[object, ...],
    group: pl.DataFrame,
    steady: pl.DataFrame,
    idle: pl.DataFrame,
) -> ServingRow:
    engine, phase, batch, graph = key
    wanted, count = steady["step"].implode(), len(steady)
    period, requests = _median(steady, "period_ns"), _median(steady, "requests")
    span_ns = _median(steady, "span_ns") or 0.0
    each_ns = period or span_ns
    by_part = parts(trace).filter(pl.col("step").is_in(wanted)).group_by("part").sum()
    by_part = by_part.sort("exposed_ns", "part", descending=[True, False])
    causes = idle.filter(pl.col("step").is_in(wanted))
    key_of_idle = ["cause", "between", "activity"]
    causes = causes.group_by(key_of_idle).agg(idle_us=pl.col("idle_ns").sum() / 1000 / count)
    causes = causes.sort("idle_us", *key_of_idle, descending=[True, False, False, False])
    waited = [ServingIdle(**row) for row in causes.iter_rows(named=True)]
    typical = steady.sort((pl.col("span_ns") - span_ns).abs(), "step")["step"][0]
    query_tokens = _median(steady, "query_tokens")
    computed = rows_computed(trace, parted(trace).filter(pl.col("step") == typical))
    padded = _median(steady, "padded") or (None if (computed or 0) <= (query_tokens or 0) else computed)
    return ServingRow(
        rank=trace.rank,
        engine=str(engine).lower(),
        phase=str(phase),
        batch=batch if isinstance(batch, int) else None,
        graph_mode=str(graph),
        n=count,
        warmup=len(group) - count,
        context_requests=_median(steady, "context_requests"),
        generation_requests=_median(steady, "generation_requests"),
        requests=requests,
        query_tokens=query_tokens,
        kv_tokens=_median(steady, "kv_tokens"),
        padded_to=padded if query_tokens else None,
        period_us=None
        if period is None
        else ServingPeriod(median=period / 1000, p90=(_quantile(steady, "period_ns", 0.9) or period) / 1000),
        span_us=span_ns / 1000,
        busy_us=(_median(steady, "busy_ns") or 0.0) / 1000,
        between_us=_us(_median(steady, "between_ns")),
        exposed_idle_us=sum(one.idle_us for one in waited),
        kernels=_median(steady, "kernels") or 0.0,
        launches=_median(steady, "launches") or 0.0,
        tokens_per_s=_rate(requests, each_ns) if phase == "decode" else None,
        read_tokens_per_s=_rate(query_tokens, each_ns) if phase in READS else None,
        idle=waited,
        exposed=[_part(row, count) for row in by_part.iter_rows(named=True)],
        layer=None if on_host(trace) else layer(run, trace, typical),
    )


def _part(row: dict[str, Any], steps: int) -> ServingPart:
    time_ns = row["costed_ns"]
    return ServingPart(
        category=row["part"],
        us=row["exposed_ns"] / 1000 / steps,
        device_us=row["device_ns"] / 1000 / steps,
        launches=row["launches"] / steps,
        costed_us=time_ns / 1000 / steps,
        bytes=row["bytes"] / steps,
        flops=row["flops"] / steps,
        memory_share=row["memory_ns"] / time_ns if time_ns and row["memory_ns"] else None,
        compute_share=row["compute_ns"] / time_ns if time_ns and row["compute_ns"] else None,
    )


def _rate(number: float | None, ns: float) -> float | None:
    return 1e9 * number / ns if number and ns else None


def _median(table: pl.DataFrame, column: str) -> float | None:
    return _quantile(table, column, 0.5)


def _quantile(table: pl.DataFrame, column: str, quantile: float) -> float | None:
    found = table[column].quantile(quantile, "linear")
    return None if found is None else float(found)


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000
