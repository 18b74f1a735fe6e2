"""A run to the one Report document that every renderer reads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec
import polars as pl

from kinetoscope import __version__
from kinetoscope.analysis.compiled.calls import graph_categories, graphs
from kinetoscope.analysis.compiled.join import join, source_of
from kinetoscope.analysis.cost.roofline import kernel_roofline
from kinetoscope.analysis.events.ops import ops
from kinetoscope.analysis.health import health
from kinetoscope.analysis.idle.gaps import idle
from kinetoscope.analysis.kernels.work import work_of_all
from kinetoscope.analysis.origins.sums import kernel_rows, kernels
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time.busy import busy
from kinetoscope.analysis.time.steps import steps
from kinetoscope.analysis.time.window import window
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof.measured import Measured, Proofs, proofs
from kinetoscope.findings.registry import find
from kinetoscope.report.collect import pace
from kinetoscope.report.collect.timings import timings
from kinetoscope.report.document import report as document
from kinetoscope.report.document.compilation import Compilation
from kinetoscope.trace.workers import cores

# From so many events on, two analyses at a time would take half a gigabyte more, and on few cores gain nothing.
LARGE, FEW = 2_000_000, 2


def build(run: Run) -> document.Report:
    """Run every analysis and put the results together. Times become microseconds here and nowhere else.

    The findings take as long as all the rest: they are looked for beside it, where memory is no matter.
    """
    one_by_one = sum(trace.source.events for trace in run.traces) > LARGE and cores() <= FEW
    proven = proofs(run)
    if one_by_one:
        ops(run)  # takes most memory: it comes while little else is remembered
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(finding_rows, run, proven)
        if one_by_one:
            wait([found])
        return _report(run, proven, found)


def _report(run: Run, proven: Proofs, findings: Future[list[document.FindingRow]]) -> document.Report:
    return document.Report(
        kinetoscope=__version__,
        sources=_sources(run),
        environment=_environment(run),
        devices=_devices(run),
        categories=_categories(run),
        kernels=_kernels(run),
        steps=_steps(run),
        ops=_ops(run),
        graphs=_graphs(run),
        health=_health(run),
        idle=_idle(run),
        timings=timings(run),
        step_times=pace.step_times(run),
        step_outliers=pace.outliers(run),
        launching=pace.launching(run),
        memory=pace.memory(run),
        allocator=pace.allocator(run),
        compilation=_compilation(run),
        unread=[*run.unread, *proven.unread],
        findings=findings.result(),  # last: until here both threads have work
    )


def _sources(run: Run) -> list[document.SourceRow]:
    return [
        document.SourceRow(
            path=trace.source.path,
            bytes=trace.source.bytes,
            events=trace.source.events,
            rank=trace.rank,
            complete=trace.source.complete,
            notes=[damage.text for damage in trace.source.damages],
        )
        for trace in run.traces
    ]


def _environment(run: Run) -> dict[str, Any]:
    """What is known of the machine: from the recording's manifest, else from what the traces say."""
    names = list(dict.fromkeys(device.name for trace in run.traces for device in trace.devices))
    if run.manifest is not None:
        recorded: dict[str, Any] = msgspec.to_builtins(run.manifest.environment)
        return {"device_names": names} | recorded
    versions = {
        key: trace.metadata[field]
        for trace in run.traces[:1]
        for key, field in (("cuda_runtime", "cuda_runtime_version"), ("cuda_driver", "cuda_driver_version"))
        if field in trace.metadata
    }
    return {"device_names": names, "torch": None} | versions


def _devices(run: Run) -> list[document.DeviceRow]:
    names = {(t.rank, d.index): d.name for t in run.traces for d in t.devices}
    # ROCm numbers a kernel's device otherwise than the device's properties; where all are of one sort, that is it.
    of_rank = {t.rank: {d.name for d in t.devices} for t in run.traces}
    only = {rank: next(iter(found)) for rank, found in of_rank.items() if len(found) == 1}
    return [
        document.DeviceRow(
            rank=row["rank"],
            device=row["device"],
            name=names.get((row["rank"], row["device"]), only.get(row["rank"], "")),
            window_us=_us(row["window_ns"]),
            span_us=_us(row["span_ns"]),
            busy_us=_us(row["busy_ns"]),
            busy_fraction=_share(row["busy_in_window_ns"], row["window_ns"]),
            busy_fraction_of_span=_share(row["busy_ns"], row["span_ns"]),
            compute_us=_us(row["compute_ns"]),
            copy_us=_us(row["copy_ns"]),
            communication_us=_us(row["communication_ns"]),
            exposed_communication_us=_us(row["exposed_communication_ns"]),
            idle_us=_us(row["idle_ns"]),
            device_time_us=_us(row["device_time_ns"]),
            kernel_launches=row["kernels"],
            unattributed_kernels=row["unattributed"],
            launches_without_kernel=row["launches_without_kernel"],
            device_events=row["device_events"],
            window_basis=row["window_basis"],
        )
        for row in busy(run).iter_rows(named=True)
    ]


def _categories(run: Run) -> list[document.CategoryRow]:
    table = work_of_all(run).select("rank", "category", "name", "start_ns", "end_ns")
    windows = {trace.rank: window(trace) for trace in run.traces}
    limits = pl.DataFrame(
        [(rank, w.start_ns, w.end_ns) for rank, w in windows.items()],
        schema={"rank": pl.Int32, "window_start": pl.Int64, "window_end": pl.Int64},
        orient="row",
    )
    inside = pl.min_horizontal("end_ns", "window_end") - pl.max_horizontal("start_ns", "window_start")
    extras = (
        table.join(limits, on="rank")
        .group_by("category")
        .agg(inside.clip(0).sum().alias("inside_ns"), pl.col("name").n_unique().alias("distinct_kernels"))
    )
    window_ns = int(busy(run)["window_ns"].sum())
    return [
        document.CategoryRow(
            category=row["category"],
            device_time_us=_us(row["device_time_ns"]),
            share_of_device_time=row["share_of_device_time"],
            share_of_window=_share(row["inside_ns"], window_ns),
            launches=row["launches"],
            distinct_kernels=row["distinct_kernels"],
        )
        for row in kernels(run, "category")
        .join(extras, on="category", maintain_order="left")
        .iter_rows(named=True)
    ]


def _kernels(run: Run) -> list[document.KernelRow]:
    rows = kernel_rows(run).join(
        kernel_roofline(run).drop("launches"), on="name", how="left", maintain_order="left"
    )
    sources = source_of(run)
    return [
        document.KernelRow(
            name=row["name"],
            short_name=row["short_name"],
            category=row["category"],
            launches=row["launches"],
            device_time_us=_us(row["device_time_ns"]),
            share_of_device_time=row["share_of_device_time"],
            mean_us=_us(row["mean_ns"]),
            median_us=_us(row["median_ns"]),
            min_us=_us(row["min_ns"]),
            max_us=_us(row["max_ns"]),
            p90_us=_us(row["p90_ns"]),
            ops=[
                document.KernelOp(
                    name=op["name"], launches=op["launches"], device_time_us=_us(op["device_time_ns"])
                )
                for op in row["ops"]
            ],
            kind=row["kind"],
            graph=row["graph"],
            source=sources.get(row["name"]),
            bytes=row["bytes"],
            flops=row["flops"],
            speed_of_light=row["speed_of_light"],
            costed_launches=row["costed_launches"] or 0,
        )
        for row in rows.iter_rows(named=True)
    ]


def _steps(run: Run) -> list[document.StepRow]:
    return [
        document.StepRow(
            name=row["name"],
            start_us=_us(row["start_ns"]),
            duration_us=_us(row["duration_ns"]),
            busy_us=_us(row["busy_ns"]),
            launches=row["launches"],
            device_time_us=_us(row["device_time_ns"]),
            rank=row["rank"],
        )
        for row in steps(run).iter_rows(named=True)
    ]


def _ops(run: Run) -> list[document.OpRow]:
    return [
        document.OpRow(
            name=row["name"],
            kind=row["kind"],
            calls=row["calls"],
            host_self_us=_us(row["host_self_ns"]),
            host_total_us=_us(row["host_total_ns"]),
            device_self_us=_us(row["device_self_ns"]),
            device_total_us=_us(row["device_total_ns"]),
        )
        for row in ops(run).iter_rows(named=True)
    ]


def _graphs(run: Run) -> list[document.GraphRow]:
    of: dict[str, list[document.GraphCategory]] = {}
    for row in graph_categories(run).iter_rows(named=True):
        of.setdefault(row["graph"], []).append(
            document.GraphCategory(
                category=row["category"],
                launches=row["launches"],
                device_time_us=_us(row["device_time_ns"]),
                share_of_graph=row["share_of_graph"],
                share_of_device_time=row["share_of_device_time"],
            )
        )
    return [
        document.GraphRow(
            graph=row["graph"],
            hash=row["hash"],
            compile_id=row["compile_id"],
            direction=row["direction"],
            calls=row["calls"],
            host_us=_us(row["host_ns"]),
            launches=row["launches"],
            device_time_us=_us(row["device_time_ns"]),
            share_of_device_time=row["share_of_device_time"],
            categories=of.get(row["graph"], []),
        )
        for row in graphs(run).iter_rows(named=True)
    ]


def finding_rows(run: Run, proven: Proofs) -> list[document.FindingRow]:
    """All findings, as the contract's rows: those that save most first, with what was measured of them."""
    return [_finding(finding, proven.of(finding)) for finding in find(run)]


def _finding(finding: Finding, measured: Measured | None) -> document.FindingRow:
    row = document.FindingRow(
        rule=finding.rule,
        severity=finding.severity,
        title=finding.title,
        saving_us=finding.saving.us,
        saving_basis=finding.saving.basis,
        evidence=[
            document.EvidenceRow(
                text=seen.text, start_us=seen.start_us, end_us=seen.end_us, events=list(seen.events)
            )
            for seen in finding.evidence
        ],
        advice=finding.advice,
        source=finding.source,
        saving_on_critical_path=finding.saving.on_critical_path,
        share_of_step=finding.saving.share,
        snippet=finding.snippet,
        proof=finding.proof.command if finding.proof else None,
        ranks=list(finding.ranks) or [finding.rank],
    )
    if measured is None:
        return row
    return msgspec.structs.replace(
        row,
        measured_saving_us=measured.saving_us,
        measured_interval_us=measured.interval_us,
        measured_basis=measured.basis,
        measured_verdict=measured.verdict,
    )


def _compilation(run: Run) -> Compilation | None:
    if run.compilation is None:
        return None
    from kinetoscope.report.collect.compilation import as_document  # with it comes what reads compile logs

    return as_document(run.compilation, join(run))


def _health(run: Run) -> document.Health:
    found = health(run)
    return document.Health(
        verdict=found.verdict,
        notes=[
            document.HealthNote(
                code=note.code,
                text=note.text,
                share_of_device_time=note.share_of_device_time,
                gravity=note.gravity,
                rank=note.rank,
            )
            for note in found.notes
        ],
    )


def _idle(run: Run) -> list[document.IdleRow]:
    return [
        document.IdleRow(
            rank=row["rank"],
            device=row["device"],
            cause=row["cause"],
            idle_us=_us(row["idle_ns"]),
            share_of_window=row["share_of_window"],
            gaps=row["gaps"],
            busy_inside_collectives_us=_us(row["inside_collectives_ns"]),
            text=row["text"],
        )
        for row in idle(run).iter_rows(named=True)
    ]


def _us(ns: float) -> float:
    return ns / 1000


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
