"""A run to the one Report document that every renderer reads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
import polars as pl

from kinetoscope import __version__
from kinetoscope.analysis.compiled.join import join
from kinetoscope.analysis.events.ops import ops
from kinetoscope.analysis.health.verdict import health
from kinetoscope.analysis.idle.gaps import idle
from kinetoscope.analysis.idle.launches import launches
from kinetoscope.analysis.passes.whole_run import whole_run
from kinetoscope.analysis.replay.replay import alone
from kinetoscope.analysis.serving.table import replays
from kinetoscope.analysis.step_outliers import step_outliers
from kinetoscope.document import Compilation, FindingRow, ReplayRow, Report
from kinetoscope.document.collect import devices, findings, kernels, memory, ranks, replay, sources, steps
from kinetoscope.findings.ledger import Job
from kinetoscope.proof.measured import Measurements, measurements
from kinetoscope.sources.run import LoadedRun

# From so many events on, two analyses at a time take half a gigabyte more, and on few cores gain nothing.
LARGE, FEW = 2_000_000, 2


def build(run: LoadedRun) -> Report:
    """Run every analysis and put the results together; the findings take as long as all the rest, and are
    looked for at the same time where memory is no matter."""
    is_large = sum(trace.source.events for trace in run.traces) > LARGE and pl.thread_pool_size() <= FEW
    proven = measurements(run)
    if is_large:
        _asked_first(run)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(findings.findings, run, proven)
        if is_large or pl.thread_pool_size() == 1:  # few events: calls wait for Python's lock
            wait([found])
        if is_large:  # once it has its row, nothing asks for replays: their graphs are large
            replay.replay(run)
            alone.forget(run)
        return _report(run, proven, found)


def _asked_first(run: LoadedRun) -> None:
    """Analyses that take most memory, while little else is remembered; then nothing asks for launches."""
    ops(run)
    idle(run)
    devices.launching(run)
    for trace in run.traces:
        launches.forget(trace)


def _report(run: LoadedRun, proven: Measurements, found: Future[list[FindingRow]]) -> Report:
    report = Report(
        kinetoscope=__version__,
        sources=sources.sources(run),
        environment=sources.environment(run),
        devices=devices.devices(run),
        categories=kernels.categories(run),
        kernels=kernels.kernels(run),
        steps=steps.steps(run),
        ops=kernels.ops(run),
        graphs=kernels.graphs(run),
        health=health(run),
        idle=devices.idle(run),
        as_it_runs=steps.as_it_runs(run),
        timings=steps.timings(run),
        step_levels=steps.levels(run),
        whole_run=whole_run(run),
        phases=steps.phases(run),
        graph_replays=replays(run),
        step_times=steps.step_times(run),
        step_outliers=list(step_outliers(run)),
        launching=devices.launching(run),
        memory=memory.memory(run),
        allocator=memory.allocator(run),
        ranks=ranks.ranks(run),
        memory_peaks=memory.peaks(run).peaks,
        replay=replay.replay(run),
        compilation=_compilation(run),
        unread=[*run.unread, *proven.unread, *memory.peaks(run).unread],
        findings=found.result(),  # last: until here both threads have work
    )
    return msgspec.structs.replace(
        report, serving=steps.of_server(run), replay=_with_all(run, report.replay, report.findings)
    )


def _with_all(run: LoadedRun, replayed: ReplayRow | None, found: list[FindingRow]) -> ReplayRow | None:
    if replayed is None:
        return None
    joint = sum((row.saving_us for row in found), 0.0)
    return msgspec.structs.replace(replayed, joint_saving_us=joint, savings_of_us=Job(run).step_us)


def _compilation(run: LoadedRun) -> Compilation | None:
    if run.compilation is None:
        return None
    from kinetoscope.document.collect.compilation import as_document  # with it comes what reads compile logs

    return as_document(run.compilation, join(run))
